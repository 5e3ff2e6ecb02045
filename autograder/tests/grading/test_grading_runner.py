"""Cells and probes in a real session, judged from outside."""

import dataclasses
import json
import threading
import time
import types

import pytest

from autograder.exercise import exercises
from autograder.grading import batch, launch, runner, worker
from autograder.grading.batch import Settings, grade_one
from autograder.grading.intake import Arrival
from autograder.grading.reading import read
from autograder.grading.released import Given
from autograder.grading.runner import _checked_output, _Run
from autograder.grading.sandbox import ANSWERS, Limits, Sandbox
from autograder.grading.wire import MAX_HEADER, MAX_SHOWN, WireError

LESSON = "ch1_self_attention"
FAST = ("softmax", "causal_mask", "luong_score")


def test_right_answers_get_full_marks(graded, notebook_of, right):
    points, reports, _, repairs = graded(notebook_of(right))
    assert repairs == []
    assert all(report.passed for report in reports.values())
    assert sum(points.values()) == sum(
        report.max_points for report in reports.values()
    )


def test_an_untouched_notebook_gets_nothing(graded, notebook_of):
    points, reports, outputs, _ = graded(notebook_of())
    assert set(points.values()) == {0.0}
    assert {report.findings[0].property for report in reports.values()} == {
        "attempted"
    }


def test_a_mistake_is_named_and_shown_on_visible_inputs(graded, notebook_of):
    wrong = (
        "def softmax(x, dim=-1):\n"
        "    e = torch.exp(x)\n    return e / e.sum(dim, keepdim=True)"
    )
    points, reports, _, _ = graded(notebook_of(softmax=wrong))
    report = reports["softmax"]
    assert 0 < points["softmax"] < report.max_points
    failed = [finding for finding in report.findings if not finding.passed]
    assert failed[0].mistake in report.hints
    assert any("softmax(" in finding.call for finding in failed)
    assert report.printed == ""


def test_a_name_that_is_not_defined(graded, notebook_of):
    points, reports, _, _ = graded(notebook_of(softmax="pass"))
    assert points["softmax"] == 0
    assert "not defined" in reports["softmax"].findings[0].detail


DEATHS = {
    "softmax": ("while True: pass", "loop"),
    "score_std": ("import os; os._exit(0)", "ended Python"),
    "softmax_jacobian": ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
    "causal_mask": ("import os; os.abort()", "SIGABRT"),
    "scaled_dot_product_attention": ("import sys; sys.exit()", "SystemExit"),
    "masked_softmax": ("return input()", "input()"),
    "additive_attention": ("return [0] * 10**10", "MemoryError"),
    "attention_backward": ("import time; time.sleep(60)", "loop"),
}


def test_death_costs_one_exercise(graded, notebook_of, right):
    answers = {name: right[name] for name in ("padding_mask", "luong_score")}
    answers |= {
        name: f"def {name}(*args, **kwargs):\n    {body}"
        for name, (body, _) in DEATHS.items()
    }
    points, reports, _, _ = graded(notebook_of(answers))
    for name, (_, says) in DEATHS.items():
        assert points[name] == 0
        first = next(
            each for each in reports[name].findings if each.passed is False
        )
        assert says in first.detail, (name, first)
    assert reports["padding_mask"].passed and reports["luong_score"].passed


CELLS = [
    "import os; os._exit(3)",
    "raise SystemExit",
    "1 / 0",
    "import ctypes; ctypes.string_at(0)",
    "def broken(:",
    "input()",
    "import no_such_module",
    "%timeit -z",
    "x = 'a' * 10**10",
    "while True: pass",
    "import time\ntry: time.sleep(60)\nexcept: pass",
]


def test_cells_that_fail_cost_nothing_else(graded, notebook_of, right):
    made = notebook_of({name: right[name] for name in FAST})
    made["cells"][3:3] = [
        {"cell_type": "code", "metadata": {}, "source": line} for line in CELLS
    ]
    points, reports, outputs, _ = graded(made)
    assert all(reports[name].passed for name in FAST)
    kinds = [
        output["error"]["kind"]
        for output in outputs.values()
        if output["error"]
    ]
    assert kinds == [
        "dead",
        "SystemExit",
        "ZeroDivisionError",
        "dead",
        "SyntaxError",
        "RuntimeError",
        "ModuleNotFoundError",
        "UsageError",
        "MemoryError",
        "late",
    ], outputs


def test_what_is_missing_here_costs_nothing_else(graded, notebook_of, right):
    made = notebook_of(
        {name: right[name] for name in FAST},
        score_std="def score_std(:\n    pass",
        masked_softmax="import flash_attn\n\n\ndef masked_softmax(): pass",
        padding_mask="def padding_mask(lengths, T):\n"
        "    return np.load('data.npz')",
    )
    made["cells"].insert(
        3,
        {
            "cell_type": "code",
            "metadata": {},
            "source": "%matplotlib qt\nimport matplotlib.pyplot as plt\n"
            "plt.plot([1, 2])\nplt.show()",
        },
    )
    points, reports, outputs, _ = graded(made)
    assert all(reports[name].passed for name in FAST)
    told = {
        name: next(
            each.detail
            for each in reports[name].findings
            if each.passed is False
        )
        for name in ("score_std", "masked_softmax", "padding_mask")
    }
    assert "not defined" in told["score_std"]
    assert "not defined" in told["masked_softmax"]
    assert "FileNotFoundError" in told["padding_mask"]
    assert any(
        output["error"] and output["error"]["module"] == "flash_attn"
        for output in outputs.values()
    )


def test_long_training_uses_up_its_share_of_the_notebook_s_time(
    graded, notebook_of, right, warm, monkeypatch
):
    monkeypatch.setattr(
        warm, "limits", dataclasses.replace(warm.limits, notebook=6, cell=2.5)
    )
    monkeypatch.setattr(runner, "MOMENT", 0.2)
    made = notebook_of({name: right[name] for name in FAST})
    place = next(
        index
        for index, cell in enumerate(made["cells"])
        if cell["metadata"].get("nbgrader", {}).get("grade_id")
        == "check-softmax"
    )
    made["cells"][place + 1 : place + 1] = [
        {"cell_type": "code", "metadata": {}, "source": "while True: pass"}
    ] * 4
    _, reports, _, repairs = graded(made)
    assert all(reports[name].passed for name in FAST)
    told = " ".join(repairs)
    assert "'while True: pass'" in told and "stopped after" in told


def test_a_line_for_ipython_costs_no_answer(graded, notebook_of, right):
    answers = {
        "softmax": "%matplotlib inline\n" + right["softmax"],
        "causal_mask": "!pip install numpy einops\n" + right["causal_mask"],
        "luong_score": "%load_ext nb_black\n" + right["luong_score"],
        "padding_mask": "padding_mask = helper",
    }
    made = notebook_of(answers)
    helper = right["padding_mask"].replace("def padding_mask", "def helper")
    made["cells"].insert(
        3,
        {
            "cell_type": "code",
            "metadata": {},
            "source": "%load_ext autoreload\n%autoreload 2\n"
            f"%matplotlib notebook\n{helper}",
        },
    )
    _, reports, _, _ = graded(made)
    assert all(reports[name].passed for name in answers)


def test_an_answer_that_loops_does_not_run_slow_cells_again(
    graded, notebook_of, right, warm, monkeypatch
):
    made = notebook_of(
        {name: right[name] for name in FAST},
        masked_softmax="def masked_softmax(*args):\n    while True: pass",
    )
    made["cells"].insert(
        3,
        {
            "cell_type": "code",
            "metadata": {},
            "source": "import time\ntime.sleep(1.1)",
        },
    )
    asked = []
    start = warm.session

    def session():
        asked.append("session")
        return start()

    monkeypatch.setattr(warm, "session", session)
    _, reports, _, _ = graded(made)
    assert all(reports[name].passed for name in FAST)
    assert asked == ["session"]


def test_an_answer_that_changes_what_others_use(graded, notebook_of, right):
    rude = right["softmax"].replace(
        "    wide =",
        "    torch.arange = torch.ones = None\n    wide =",
    )
    assert rude != right["softmax"]
    made = notebook_of({name: right[name] for name in FAST}, softmax=rude)
    _, reports, _, _ = graded(made)
    assert all(reports[name].passed for name in FAST)


def test_a_slow_answer_has_its_time(graded, notebook_of, right):
    slow = right["softmax"].replace(
        "    wide =", "    import time; time.sleep(0.1)\n    wide ="
    )
    assert slow != right["softmax"]
    _, reports, _, _ = graded(notebook_of(softmax=slow))
    assert reports["softmax"].passed


def test_a_notebook_of_colab(graded, notebook_of, right):
    made = notebook_of({name: right[name] for name in FAST})
    made["cells"].insert(
        2,
        {
            "cell_type": "code",
            "metadata": {"id": "x"},
            "source": (
                "#@title Mount\n"
                "from google.colab import drive, files, userdata\n"
                "drive.mount('/content/drive')\nimport google.colab\n"
                "files.upload()\nfor name in files.upload(): pass\n"
                "%cd /content\n!ls\nawait __import__('asyncio').sleep(0)"
            ),
        },
    )
    _, reports, outputs, _ = graded(made)
    assert all(reports[name].passed for name in FAST)


def test_noise_never_counts(graded, notebook_of, right):
    noisy = right["softmax"].replace(
        "    wide =",
        "    import sys, warnings\n"
        "    warnings.warn('hm')\n    print('x' * 10**6, file=sys.stderr)\n"
        "    import os; os.write(2, b'low')\n    wide =",
    )
    assert noisy != right["softmax"]
    made = notebook_of(softmax=noisy)
    made["cells"].insert(
        3,
        {
            "cell_type": "code",
            "metadata": {},
            "source": "for i in range(200_000): print(i)",
        },
    )
    _, reports, _, _ = graded(made)
    assert reports["softmax"].passed


def test_what_is_defined_further_down_is_found(graded, notebook_of, right):
    made = notebook_of(
        softmax="def softmax(x, dim=-1):\n    return late(x, dim)"
    )
    late = right["softmax"].replace("def softmax", "def late")
    made["cells"].append({"cell_type": "code", "metadata": {}, "source": late})
    _, reports, _, repairs = graded(made)
    assert reports["softmax"].passed
    assert any("after the last cell" in text for text in repairs)


def test_the_check_cell_sees_what_is_defined_until_then(
    graded, notebook_of, right
):
    made = notebook_of(softmax=right["softmax"])
    made["cells"].append(
        {"cell_type": "code", "metadata": {}, "source": "softmax = None"}
    )
    _, reports, _, _ = graded(made)
    assert reports["softmax"].passed


def test_a_neighbour_that_takes_the_warm_process_along(
    graded, notebook_of, right, warm
):
    made = notebook_of(softmax=right["softmax"])
    made["cells"].insert(
        3,
        {
            "cell_type": "code",
            "metadata": {},
            "source": "import time; time.sleep(1)",
        },
    )
    killer = threading.Timer(0.7, warm.kill)
    killer.start()
    _, reports, outputs, _ = graded(made)
    killer.join()
    assert reports["softmax"].passed
    assert not any(output["error"] for output in outputs.values())


def test_outputs_are_kept_small(graded, notebook_of):
    made = notebook_of(softmax="1 / 0")
    made["cells"].insert(
        3,
        {
            "cell_type": "code",
            "metadata": {},
            "source": "print('y' * 10**7)\nimport os\n"
            "os.write(1, b'z' * 10**6)\n"
            "'w' * 10**6",
        },
    )
    _, _, outputs, _ = graded(made)
    assert len(json.dumps(outputs)) < 200_000
    assert any("yyy" in output["text"] for output in outputs.values())


SHOWING = """
import os
from IPython.display import Image, display
for _ in range({count}):
    display({what})
"""


@pytest.mark.parametrize(
    "what",
    ["Image(data=os.urandom(290_000), format='png')", "'\U0001f600' * 19_000"],
    ids=["pictures", "texts"],
)
def test_what_a_cell_shows_never_costs_what_it_defines(
    graded, notebook_of, right, what
):
    made = notebook_of(softmax="softmax = shown_before\n1 / 0")
    source = SHOWING.format(count=MAX_SHOWN, what=what)
    source += right["softmax"].replace("def softmax", "def shown_before")
    made["cells"].insert(
        3,
        {"cell_type": "code", "metadata": {}, "source": source},
    )
    points, _, outputs, _ = graded(made)
    assert points["softmax"] == exercises(LESSON)["softmax"].points
    (shown,) = [each["shown"] for each in outputs.values() if each["shown"]]
    assert any(shown) and len(json.dumps(shown)) < MAX_HEADER
    assert [
        output["error"]["kind"]
        for output in outputs.values()
        if output["error"]
    ] == ["ZeroDivisionError"]


@pytest.mark.parametrize(
    "shown", [5, "ab", [5, {"data": 7}, {"data": {"text/plain": [1]}}], {}]
)
def test_what_a_session_says_is_cut_to_plain_data(shown):
    made = _checked_output({"shown": shown, "text": ["x"], "error": {}})
    assert not any(made["shown"]) and made["text"] == ""
    assert made["error"] == {"kind": "", "text": "", "module": ""}


class Scripted:
    """A warm process whose sessions do to a cell what a test wants.

    does(number of the session, source): raises what ends the session
    """

    limits = Limits(cell=5, notebook=5)

    def __init__(self, does, orphaned=False):
        self.does, self.orphaned = does, orphaned
        self.asked = []  # (number of the session, source)

    def session(self):
        number = len({number for number, _ in self.asked})

        def ask(body, arrays=(), *, seconds):
            self.asked.append((number, body["source"]))
            self.does(number, body["source"])
            return {"text": body["source"]}, ()

        return types.SimpleNamespace(
            ask=ask, orphaned=self.orphaned, close=lambda: None
        )

    def trace(self, *sources, seconds=5):
        cells = [Given("code", "given", source) for source in sources]
        deadline = time.monotonic() + seconds
        outputs = _Run(self, cells, [], None, deadline).trace().outputs
        return [
            output["error"] and output["error"]["kind"]
            for output in outputs.values()
        ]


def test_a_cell_that_ends_python_only_when_it_runs_again_is_to_blame():
    def does(number, source):
        if source == "dies" or source == "dies later" and number:
            raise WireError

    warm = Scripted(does)
    kinds = warm.trace("first", "dies later", "dies", "last")
    assert kinds == [None, "dead", "dead", None]
    # The last cell finds what the first one defines.
    assert [source for _, source in warm.asked][-2:] == ["first", "last"]


def test_a_cell_that_time_does_not_reach_is_not_said_to_end_python():
    def does(number, source):
        if source == "dies":
            raise WireError
        time.sleep(0.3 * number)

    warm = Scripted(does)
    kinds = warm.trace("first", "second", "dies", "last", seconds=0.2)
    assert kinds == [None, None, "dead", "late"]


def test_a_notebook_that_only_lost_its_process_is_not_given_zero(
    monkeypatch, notebook_of
):
    def does(number, source):
        raise WireError

    monkeypatch.setattr(
        batch, "warm_process", lambda settings: Scripted(does, orphaned=True)
    )
    data = json.dumps(notebook_of()).encode()
    arrival = Arrival("ann", "x.ipynb", LESSON, read(data))
    made = grade_one(arrival, Settings("tests"))
    assert "grade this notebook alone" in made["problem"]


def test_a_process_that_has_ended_is_named_with_its_last_words(monkeypatch):
    monkeypatch.setattr(launch, "START", "raise SystemExit('no torch here')")
    launched = launch.launch()
    launched.process.wait()
    with pytest.raises(launch.WarmError, match="no torch here"):
        worker.Warm(Limits()).start(launched)


def test_a_session_knows_the_process_that_it_was_started_in(warm, monkeypatch):
    class Rude:
        """A lock after which another thread starts the process anew."""

        def __enter__(self):
            pass

        def __exit__(self, *error):
            warm.generation += 1

    warm.wait()
    monkeypatch.setattr(warm, "_lock", Rude())
    session = warm.session()
    assert session.orphaned
    session.close()


def test_whole_answers_are_hidden_without_bubblewrap_too(monkeypatch):
    pytest.importorskip(ANSWERS[0])
    for module in (launch, worker):
        monkeypatch.setattr(
            module, "find_sandbox", lambda required: Sandbox("plain")
        )
    warm = worker.Warm(Limits())
    try:
        session = warm.session()
        if "without a sandbox" in warm.told:
            pytest.skip("this system has no namespaces that could hide them")
        body, _ = session.ask(
            {
                "do": "run",
                "source": f"from {ANSWERS[0]} import GPT2Model",
                "seconds": 60,
            },
            seconds=60,
        )
        session.close()
    finally:
        warm.close()
    assert body["error"]["kind"] == "ImportError"
