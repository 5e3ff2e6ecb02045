"""Attacks in the real sandbox: none gains, learns, escapes or stays."""

import collections
import concurrent.futures
import json
import time

import psutil
import pytest
from attacks import ATTACKS

from autograder.grading.feedback import page
from autograder.grading.intake import Arrival
from autograder.grading.records import record
from autograder.grading.sandbox import find_sandbox

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
SAFE = find_sandbox().name != "plain"


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
    """What the attacks that are stopped at once led to."""
    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        return dict(
            zip(
                (each.name for each in QUICK if tried(each)),
                executor.map(attacked, filter(tried, QUICK)),
                strict=True,
            )
        )


def tried(attack):
    return SAFE or attack.kind not in NEED_SANDBOX


def ids(attacks):
    return [f"{each.kind}: {each.name}" for each in attacks]


QUICK = [each for each in ATTACKS if not each.slow]
SLOW = [each for each in ATTACKS if each.slow]


@pytest.mark.parametrize("attack", QUICK, ids=ids(QUICK))
def test_attack(attack, quick, warm, lesson):
    if not tried(attack):
        pytest.skip("nothing protects from it without bubblewrap")
    judge(attack, *quick[attack.name], warm, lesson)


@pytest.mark.parametrize("attack", SLOW, ids=ids(SLOW))
def test_slow_attack(attack, attacked, warm, lesson):
    if not tried(attack):
        pytest.skip("nothing protects from it without bubblewrap")
    judge(attack, *attacked(attack), warm, lesson)


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
    process = psutil.Process(warm._process.pid)
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
