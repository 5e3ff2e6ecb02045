"""Attacks in the real sandbox: none gains, learns, escapes or stays."""

import collections
import concurrent.futures
import json
import time

import psutil
import pytest
from attacks import ATTACKS

from autograder.grading import launch, sandbox, worker
from autograder.grading.feedback import page
from autograder.grading.intake import Arrival
from autograder.grading.reading import read
from autograder.grading.records import record
from autograder.grading.repair import rebuild
from autograder.grading.runner import grade, prepare

# Each is a notebook in the sandbox, with an honest one behind it.
pytestmark = pytest.mark.slow

# What only a sandbox can keep out. Without one, which is said so, these are
# not even tried: they would reach the machine that tests.
NEED_SANDBOX = {
    "reading",
    "files",
    "network",
    "persistence",
    "warm process",
    "flood",
}
SAFE = sandbox.find_sandbox().name != "plain"


def test_there_are_enough_of_each_kind():
    kinds = collections.Counter(attack.kind for attack in ATTACKS)
    assert len(ATTACKS) >= 30
    assert min(kinds.values()) >= 2


@pytest.fixture(scope="session")
def attacked(graded, notebook_of, right):
    """Start attacks in pairs, each with an honest notebook behind it."""
    honest = notebook_of(softmax=right["softmax"])

    def run(attack):
        made = notebook_of(softmax=attack.answer)
        made["cells"].insert(
            3, {"cell_type": "code", "metadata": {}, "source": attack.code}
        )
        return graded(made), graded(honest)

    return run


@pytest.fixture(scope="session")
def quick(attacked):
    """What the attacks led to that need no core for themselves."""
    attacks = [each for each in [*WAITING, *QUICK] if tried(each)]
    with concurrent.futures.ThreadPoolExecutor(4) as executor:
        return dict(
            zip(
                (each.name for each in attacks),
                executor.map(attacked, attacks),
                strict=True,
            )
        )


def tried(attack):
    return SAFE or attack.kind not in NEED_SANDBOX


def ids(attacks):
    return [f"{each.kind}: {each.name}" for each in attacks]


QUICK = [each for each in ATTACKS if not each.slow]
# Those that only let the grader wait, and those that use up a machine.
WAITING = [
    each for each in ATTACKS if each.name in ("send replaced", "a slow drip")
]
SLOW = [each for each in ATTACKS if each.slow and each not in WAITING]


@pytest.mark.parametrize(
    "attack", [*QUICK, *WAITING], ids=ids([*QUICK, *WAITING])
)
def test_attack(attack, quick, warm, lesson):
    if not tried(attack):
        pytest.skip("nothing protects from it without bubblewrap")
    judge(attack, *quick[attack.name], warm, lesson)


@pytest.mark.parametrize("attack", SLOW, ids=ids(SLOW))
def test_slow_attack(attack, attacked, warm, lesson):
    if not tried(attack):
        pytest.skip("nothing protects from it without bubblewrap")
    judge(attack, *attacked(attack), warm, lesson)


@pytest.fixture
def other_warm(bwrap, monkeypatch):
    """A warm process in the sandbox that graders have who are not root."""
    *_, prefix = sandbox._prefixes()
    other = sandbox.Sandbox("bubblewrap", tuple(prefix))
    for module in (launch, worker):
        monkeypatch.setattr(module, "find_sandbox", lambda required: other)
    process = worker.Warm(sandbox.Limits(cell=2, probe=4, cpu=1))
    yield process
    process.close()


def test_files_of_a_grader_who_is_not_root(
    other_warm, lesson, notebook_of, right
):
    (writing,) = [each for each in ATTACKS if "writing into" in each.name]
    made = notebook_of(softmax=right["softmax"], causal_mask="1 / 0")
    made["cells"].insert(
        3, {"cell_type": "code", "metadata": {}, "source": writing.code}
    )
    prepare(lesson, "tests")
    cells = rebuild(lesson, read(json.dumps(made).encode())).cells
    reports, outputs, _ = grade(other_warm, cells, "tests")
    assert reports["softmax"].passed
    assert writing.finds not in json.dumps(outputs)


def judge(attack, mine, next_one, warm, lesson):
    points, reports, outputs, repairs = mine
    assert points["softmax"] == 0, "it gained points"
    told = json.dumps(outputs)
    assert attack.kind == "page" or attack.finds not in told, told
    html = page(
        record(
            Arrival("eve", "x.ipynb"),
            lesson,
            [],
            (reports, outputs, repairs),
            0,
        )
    )
    assert "<script" not in html
    assert attack.kind != "page" or attack.finds not in html
    # The next notebook is judged as if nothing had been.
    _, reports, _, _ = next_one
    assert reports["softmax"].passed
    assert not _left_behind(warm)


def _left_behind(warm):
    """Processes below the warm one that no notebook needs any more."""
    deadline = time.monotonic() + 3
    process = psutil.Process(warm.process.pid)
    while not process.name().startswith("python"):
        (process,) = process.children()  # bubblewrap has one of each
    while True:
        left = [
            each
            for each in process.children(recursive=True)
            if each.is_running() and each.status() != psutil.STATUS_ZOMBIE
        ]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.1)
