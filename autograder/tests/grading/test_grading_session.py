"""What a cell finds when it is graded is what it finds in Jupyter."""

import contextlib
import time
import types

import pytest

from autograder.grading import colab, session
from autograder.grading.session import CellTimeout, _alarm

# Each is the first line of a cell whose other lines are needed.
LINES = [
    "%matplotlib inline",
    "%matplotlib",
    "%matplotlib notebook",
    "%matplotlib widget",
    "%matplotlib qt",
    "%pylab inline",
    "%config InlineBackend.figure_format = 'retina'",
    "%load_ext autoreload\n%autoreload 2",
    "%load_ext no_such_extension\n%no_such_magic --logdir x",
    "%pdb on",
    "%pip install numpy",
    "%conda install numpy",
    "%env ANSWER=42",
    "%cd ..\n%cd -",
    "%who",
    "%timeit -n1 -r1 sum([1])",
    "?sum",
    "sum?",
    "!ls",
    "!no-such-program",
    "%gui qt",
    "%autosave 60",
    "from IPython.display import *; display(HTML('<b>x</b>'), Math('x'))",
    "clear_output(wait=True); display(1, display_id='x').update(2)",
]
# Each is the first line of a cell whose other lines are no Python of it.
CELLS = [
    "%%timeit -n1 -r1",
    "%%bash",
    "%%sh",
    "%%html",
    "%%javascript",
    "%%latex",
    "%%markdown",
    "%%writefile module.py",
]
SHELLS = ("%%bash", "%%sh")  # the other lines are no command
# Each is the first line of a cell whose other lines are run as Python.
TIMED = ["%%time", "%%capture", "%%capture output", "%%prun -q"]


@pytest.fixture(scope="module")
def run(warm):
    """Run a cell in a session that all tests share; what it put out."""
    warm.wait()
    here = warm.session()

    def ask(source):
        body = {"do": "run", "source": source, "seconds": 20}
        return here.ask(body, seconds=30)[0]

    yield ask
    here.close()


@pytest.mark.parametrize("number, line", [*enumerate(LINES)], ids=LINES)
def test_a_line_for_ipython_costs_no_line_below_it(run, number, line):
    assert run(f"{line}\nreached = {number}")["error"] is None
    assert run("print('reached', reached)")["text"] == f"reached {number}\n"


@pytest.mark.parametrize("line", CELLS)
def test_a_cell_for_ipython_costs_no_other_cell(run, line):
    assert run(f"{line}\n2 + 2")["error"] is None or line in SHELLS
    assert run("print('reached')")["text"] == "reached\n"


@pytest.mark.parametrize("line", TIMED)
def test_what_a_cell_for_ipython_defines_is_there(run, line):
    assert run(f"{line}\nmade_by = {line!r}")["error"] is None
    assert run("print(made_by)")["text"] == f"{line}\n"


@pytest.mark.parametrize("line", ["%no_such_magic 1", "%load_ext nowhere"])
def test_a_magic_that_is_not_here_is_told_and_left_out(run, line):
    assert run(f"{line}\nprint('on')")["text"] == (
        f"Left out: no package here has {line}\non\n"
    )


def test_a_magic_sees_the_names_around_it(run):
    run("def f():\n    inner = 'mine'\n    %env ANSWER=$inner\nf()")
    assert run("import os\nprint(os.environ['ANSWER'])")["text"] == "mine\n"


def test_figures_are_shown_whatever_window_is_asked_for(run):
    made = run(
        "%matplotlib tk\nimport matplotlib.pyplot as plt\n"
        "plt.plot([1, 2])\nplt.show()"
    )
    assert [list(each["data"]) for each in made["shown"]] == [
        ["text/plain", "image/png"]
    ]


def test_what_is_written_for_a_terminal_is_text(run):
    made = run("print('\x1b[1;31mred\x1b[0m and \x1b[?25l\x1b[38;5;9mblue')")
    assert made["text"] == "red and blue\n"


def test_a_command_sees_the_names_of_the_notebook(run):
    made = run("cmd = 'mine'\n!echo {cmd} $cmd {{cmd}}")
    assert made["text"].split() == ["mine", "mine", "{cmd}"]


INSTALLING = [
    "pip install {}",
    "pip3 install -q --upgrade {} 2>&1 | tail -1",
    "/usr/bin/python3.11 -m pip --quiet install '{}>=0.1' -i https://a/b",
    "'/a b/python' -m pip install {}[all]==1.0 --user",
    "cd code && pip install --index-url https://a/b {}",
    "uv pip install {}",
    "sudo apt-get -qq install -y {} > /dev/null",
    "conda install -c pytorch {}",
    "pip install '{}",
    "pip install {}>=0.1",
]


@pytest.mark.parametrize("command", INSTALLING)
def test_what_would_be_installed_is_named(command):
    told = colab.told_of_installing(command.format("numpy"))
    assert told == "Not needed here: numpy is installed."
    told = colab.told_of_installing(command.format("no_such-package"))
    assert told.startswith("no_such-package cannot be installed when")
    assert "\n" not in told


@pytest.mark.parametrize(
    "command", ["-r requirements.txt", "git+https://a/b", "-e . > log 2>&1"]
)
def test_nothing_can_be_installed_from_elsewhere(command):
    told = colab.told_of_installing(f"pip install {command}")
    assert told.startswith("Nothing can be installed")


@pytest.mark.parametrize(
    "command",
    [
        "pip list",
        "pip show numpy",
        "echo pip install numpy",
        "python train.py install",
        "ls pip",
        "./my-pip-tool install",
        "",
    ],
)
def test_a_command_that_installs_nothing_is_run(command):
    assert colab.told_of_installing(command) == ""


def test_a_package_with_whole_answers_is_not_said_to_be_there(run):
    pytest.importorskip("transformers")
    made = run("!pip install transformers")
    assert "transformers cannot be installed" in made["text"]


@pytest.mark.parametrize(
    "line", ["!pip install", "%pip install", "pip install"]
)
def test_installing_shows_no_traceback_and_no_path(run, line):
    text = run(f"{line} numpy no-such-package")["text"]
    assert "no-such-package cannot be installed" in text
    assert "Traceback" not in text and "/" not in text and "\x1b" not in text


@pytest.mark.parametrize(
    "call",
    [
        "check_call([sys.executable, '-m', 'pip', 'install', 'numpy'])",
        "run(('pip', 'install', 'numpy'), check=True)",
        "check_call('pip install numpy', shell=True)",
    ],
)
def test_installing_by_a_process_costs_no_line_below_it(run, call):
    made = run(f"import subprocess, sys\nsubprocess.{call}\nprint('below')")
    assert made["error"] is None
    assert "Not needed here: numpy is installed." in made["text"]
    assert "below" in made["text"]


def test_other_processes_run_as_they_are(run):
    made = run(
        "import pathlib, subprocess\n"
        "subprocess.check_output([pathlib.Path('/bin/echo'), b'a', 'b c'])"
    )
    assert made["shown"][0]["data"]["text/plain"] == repr(b"a b c\n")


@pytest.mark.parametrize(
    "share, ends",
    [(1, 15), (0.6, 25), (0.2, 30), (0, 15)],
    ids=["computes", "busy machine", "very busy machine", "sleeps"],
)
def test_a_cell_has_its_processor_time_on_a_busy_machine(
    monkeypatch, share, ends
):
    now = [100.0]
    clock = types.SimpleNamespace(
        monotonic=lambda: now[0], process_time=lambda: share * now[0]
    )
    monkeypatch.setattr(session, "time", clock)
    left = session._left(15, most=30)
    now[0] += 15
    while left() > 0:
        now[0] += max(left(), session.TICK)
    assert now[0] - 100 == pytest.approx(ends, abs=2 * session.TICK)


def test_an_interruption_that_is_caught_comes_again():
    began = time.monotonic()
    with pytest.raises(CellTimeout):
        with _alarm(0.1, most=0.2):
            with contextlib.suppress(BaseException):
                time.sleep(9)
            time.sleep(9)
    assert time.monotonic() - began < 9
