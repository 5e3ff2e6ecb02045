"""A class from its folder to gradebook, pages and tables."""

import contextlib
import csv
import dataclasses
import datetime
import errno
import fcntl
import io
import json
import logging
import os
import secrets
import shutil
import sqlite3
import threading
import time

import dask
import distributed  # noqa: F401  # its settings, before one is changed
import nbformat
import pytest
from bs4 import BeautifulSoup
from nbconvert.filters.markdown import markdown2html
from nbgrader.api import Gradebook
from nbgrader.plugins.export import CsvExportPlugin
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from autograder.cli import main
from autograder.course import ROOT
from autograder.exercise import exercises
from autograder.grading import (
    batch,
    bench,
    command,
    gradebook,
    recorded_seed,
    records,
)
from autograder.grading.command import line_of
from autograder.grading.export import table
from autograder.grading.feedback import harmless_markdown
from autograder.grading.intake import Arrival
from autograder.grading.released import released
from autograder.grading.repair import rebuild
from autograder.grading.sandbox import Limits
from autograder.report import Finding, Report

LESSON = "ch1_self_attention"
POINTS = {
    name: exercise.points for name, exercise in exercises(LESSON).items()
}
TOTAL = sum(POINTS.values())
WRONG = """def softmax(x, dim=-1):
    return torch.exp(x) / torch.exp(x).sum(dim, keepdim=True)"""


@dataclasses.dataclass
class Done:
    stdout: str
    stderr: str


def grade(submissions, out, *options, expect=0):
    """Run the command in this process, which has everything loaded."""
    said, told = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(told):
        status = main(["grade", str(submissions), "--out", str(out), *options])
    assert status == expect, told.getvalue()
    return Done(said.getvalue(), told.getvalue())


def write(folder, student, made):
    path = folder / student / LESSON / f"{LESSON}.ipynb"
    path.parent.mkdir(parents=True)
    path.write_bytes(
        made if isinstance(made, bytes) else json.dumps(made).encode()
    )
    return path


@pytest.fixture(scope="module")
def course(tmp_path_factory, notebook_of, right):
    """A graded class: (its folder, results, the records printed)."""
    folder = tmp_path_factory.mktemp("class")
    hostile = notebook_of(right, softmax=WRONG)
    hostile["cells"] += [
        {
            "cell_type": "markdown",
            "metadata": {},
            "source": "<script>alert(1)</script>\n\n[x](javascript:alert(1)) "
            "![p](https://example.org/p.png) <b onclick='alert(1)'>b</b>",
        },
        {
            "cell_type": "code",
            "metadata": {},
            "outputs": [],
            "execution_count": None,
            "source": "print('<script>alert(2)</script>')\n"
            "from IPython.display import HTML\n"
            "HTML('<script>alert(3)</script>')",
        },
    ]
    write(folder, "anna", notebook_of(right))
    write(folder, "=HYPERLINK(1)", hostile)
    write(folder, "cleo", notebook_of())
    write(folder, "dirk", b"%PDF-1.4 my homework")
    out = folder.parent / "results"
    done = grade(folder, out, "--json", expect=1)
    return folder, out, [json.loads(line) for line in done.stdout.splitlines()]


def test_one_record_a_submission(course):
    _, _, records = course
    by_name = {made["student"]: made for made in records}
    assert set(by_name) == {"anna", "HYPERLINK_1", "cleo", "dirk"}
    anna = by_name["anna"]
    assert anna["points"] == anna["max_points"] > 0
    assert anna["lesson"] == LESSON and not anna["repairs"]
    assert by_name["cleo"]["points"] == 0
    assert "PDF" in by_name["dirk"]["problem"]
    softmax = by_name["HYPERLINK_1"]["exercises"][0]
    assert 0 < softmax["points"] < softmax["max_points"]
    assert softmax["hints"]


def test_the_gradebook_is_nbgrader_s(course):
    _, out, records = course
    with Gradebook(f"sqlite:///{out / 'gradebook.db'}") as book:
        for made in records:
            if made["problem"]:
                continue
            submission = book.find_submission(LESSON, made["student"])
            assert submission.score == pytest.approx(made["points"])
            assert submission.max_score == made["max_points"]
            assert not submission.needs_manual_grade
        (cleo,) = book.find_submission(LESSON, "cleo").notebooks
        assert {comment.auto_comment for comment in cleo.comments} == {
            "No response."
        }


def test_autograded_notebooks_are_valid_and_harmless(course):
    _, out, _ = course
    paths = list((out / "autograded").glob(f"*/{LESSON}/{LESSON}.ipynb"))
    assert len(paths) == 3
    for path in paths:
        made = nbformat.read(path, as_version=4)
        nbformat.validate(made)
        for cell in made.cells:
            if cell.cell_type == "markdown" and "alert" in cell.source:
                assert "<script" not in cell.source
                assert_harmless(markdown2html(cell.source))
            for output in cell.get("outputs", ()):
                assert "<script" not in str(
                    output.get("data", {}).get("text/html", "")
                )


LINKS = [
    "[x](javascript:alert(1))",
    "[x](java&#115;cript:alert(1))",
    "[x](javascript&colon;alert(1))",
    "[x](javascript\\:alert(1))",
    "[x](<javascript:alert(1)>)",
    "[x][y]\n\n[y]: java&#115;cript:alert(1)",
    "[y]\n\n[y]:\njavascript&colon;alert(1)",
    "[y\\]]\n\n[y\\]]: javascript&colon;alert(1)",
    "> - [x](vbscript&colon;x)",
    "| [x](data&colon;text/html,x) | b |\n|---|---|\n| 1 | 2 |",
    "# [x](java&Tab;script:alert(1))",
    "[![x](https://example.org/p.png)](javascript&colon;alert(1))",
    "![x](javascript&colon;alert(1))",
    "![x](attachment:missing.png)",
    "![y][]\n\n[y]: https://example.org/p.png",
    "<javascript:alert(1)>",
    "<a href='java&#115;cript:alert(1)'>x</a>",
    "</p\n><img src=x onerror=alert(1)>",
    "\\<script>alert(1)</script>",
    "<!-- --><svg/onload=alert(1)>",
    "```mermaid\n</pre><script>alert(1)</script>\n```",
    "$x$ <b onclick='alert(1)'>[x](javascript&colon;alert(1))</b>",
]


def assert_harmless(page):
    """No element has an address but one of the web or of the page."""
    for tag in BeautifulSoup(page, "html.parser").find_all(True):
        assert tag.name not in ("script", "img", "svg")
        for name, value in tag.attrs.items():
            assert not name.startswith("on")
            assert name != "href" or value.startswith(("http", "#")), value


@pytest.mark.parametrize("source", LINKS)
def test_no_spelling_of_a_link_runs_something(source):
    assert_harmless(markdown2html(harmless_markdown(source)))


def test_harmless_markdown_is_still_markdown():
    source = (
        "# A\n\n- **b** $x_{[i]}^2 \\le [a, b]$ and `c[0]`\n\n"
        "$$a & b \\\\ c$$\n\n| d |\n|---|\n| see https://example.org |"
    )
    assert harmless_markdown(source) == source


def test_a_file_s_name_makes_one_line():
    made = {
        "student": "s",
        "file": "a\nb\x1b[2J\u202e\udcff",
        "problem": "é ü",
    }
    assert line_of(made) == "s  a?b?[2J??: é ü"


@pytest.mark.parametrize(
    "options, says",
    [
        (["--workers", "-3"], "--workers"),
        (["--workers", "0"], "--workers"),
        (["--scheduler", "tcp://127.0.0.1:1"], "scheduler"),
        (["--scheduler", "nonsense://x"], "scheduler"),
        (["--scheduler", "127.0.0.1:port"], "scheduler"),
        (["--scheduler", "tls://127.0.0.1:1"], "scheduler"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(tmp_path, options, says):
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
        done = grade(tmp_path, tmp_path / "out", *options, expect=2)
    assert says in done.stderr
    assert "Traceback" not in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/none"])
def test_where_results_cannot_be_is_told(tmp_path, place):
    (tmp_path / "file").touch()
    done = grade(tmp_path, tmp_path / place, expect=2)
    assert "--out" in done.stderr and done.stderr.count("\n") == 1


def test_feedback_shows_everything_and_runs_nothing(course):
    _, out, _ = course
    page = (
        out / "feedback" / "HYPERLINK_1" / LESSON / f"{LESSON}.html"
    ).read_text()
    assert "Likely cause" in page
    assert "&lt;script&gt;alert(2)" in page
    assert "<script" not in page
    assert 'href="javascript' not in page and "href='javascript" not in page
    assert "example.org/p.png" not in page.replace("&quot;", "")
    assert "default-src 'none'" in page
    assert (
        "PDF"
        in (out / "feedback" / "dirk" / LESSON / f"{LESSON}.html").read_text()
    )


def test_tables_hold_everybody_and_no_formula(course):
    _, out, records = course
    with open(out / "grades.csv", encoding="utf-8") as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    assert set(rows) == {made["student"] for made in records}
    assert float(rows["anna"]["points"]) == TOTAL
    assert (
        table(["a"], [["=1+1"], ["-2"], [-2.5], ["+a"], ["@b"], ["ok"]])
        == "a\n'=1+1\n'-2\n-2.5\n'+a\n'@b\nok\n"
    )


def test_unchanged_ones_are_not_graded_again(course, notebook_of, right):
    folder, out, _ = course
    with Gradebook(f"sqlite:///{out / 'gradebook.db'}") as book:
        (grade_,) = [
            each
            for each in book.find_submission(LESSON, "anna")
            .notebooks[0]
            .grades
            if each.name == "check-softmax"
        ]
        grade_.manual_score, grade_.needs_manual_grade = 1.25, False
        book.db.commit()
    write(folder, "emil", notebook_of({"softmax": right["softmax"]}))
    done = grade(folder, out, expect=1)
    lines = done.stdout.splitlines()
    assert sum("unchanged" in line for line in lines) == 3
    due = f"emil  {LESSON}  {POINTS['softmax']:g}/{TOTAL:g},"
    assert any(line.startswith(due) for line in lines)
    done = grade(folder / "anna", out, "--force")
    with Gradebook(f"sqlite:///{out / 'gradebook.db'}") as book:
        (grade_,) = [
            each
            for each in book.find_submission(LESSON, "anna")
            .notebooks[0]
            .grades
            if each.name == "check-softmax"
        ]
        assert grade_.manual_score == 1.25
        assert grade_.needs_manual_grade


def test_a_name_that_looks_like_an_earlier_one_takes_no_result(
    tmp_path, notebook_of, right
):
    out = tmp_path / "out"
    write(tmp_path / "one", "Ana López", notebook_of(right))
    write(tmp_path / "two", "Ana Lopez", notebook_of())
    grade(tmp_path / "one", out)
    said = grade(tmp_path / "two", out).stdout
    assert "unchanged" not in said
    with open(out / "grades.csv", encoding="utf-8") as file:
        points = {
            row["student"]: float(row["points"])
            for row in csv.DictReader(file)
        }
    assert sorted(points.values()) == [0, TOTAL]
    assert points["Ana_Lopez"] == TOTAL


def test_nothing_there(tmp_path):
    done = grade(tmp_path / "no", tmp_path / "out", expect=2)
    assert "is not there" in done.stderr
    (tmp_path / "empty").mkdir()
    done = grade(tmp_path / "empty", tmp_path / "out", expect=2)
    assert "No files" in done.stderr and done.stderr.count("\n") == 1


class Idle:
    """Stands for a warm process in which nothing runs."""

    told = ""

    def __init__(self):
        self.stopped = threading.Event()

    def begin(self, launched):
        pass

    def wait(self):
        pass

    def close(self):
        pass

    def stop(self):
        self.stopped.set()


def all_right(arrival, settings):
    """The record of a notebook that nobody has run: full marks."""
    if arrival.problem:
        return records.problem(arrival)
    lesson = released(LESSON)
    reports = {
        name: Report(name, most, most, findings=(Finding("runs", True),))
        for name, most in POINTS.items()
    }
    cells = rebuild(lesson, arrival.submitted).cells
    return records.record(arrival, lesson, cells, (reports, {}, []), 0.1)


@pytest.fixture
def idle(monkeypatch):
    """Let batches run no notebook, so that what is around them is tested."""
    process = Idle()
    monkeypatch.setattr(command, "launch", lambda required: None)
    monkeypatch.setattr(batch, "warm_process", lambda settings: process)
    monkeypatch.setattr(batch, "_prepared", lambda name, seed: None)
    monkeypatch.setattr(batch, "grade_one", all_right)
    return process


@pytest.fixture
def small_class(tmp_path, notebook_of, idle):
    """Three good notebooks, one of them handed in on January 5 at noon, and
    an empty file: (its folder, results of the first run)."""
    folder, out = tmp_path / "class", tmp_path / "out"
    for student in ("anna", "ben", "cleo"):
        path = write(folder, student, notebook_of())
    path.with_name("timestamp.txt").write_text("2026-01-05 12:00:00 UTC")
    write(folder, "dirk", b"")
    grade(folder, out, expect=1)
    return folder, out


@contextlib.contextmanager
def opened(out):
    """The gradebook as another program has it; it commits at the end."""
    with Gradebook(f"sqlite:///{out / 'gradebook.db'}") as book:
        yield book
        book.db.commit()


def graded_by_hand(out, student, **scores):
    with opened(out) as book:
        (notebook,) = book.find_submission(LESSON, student).notebooks
        for each in notebook.grades:
            if each.name == "check-softmax":
                for name, value in scores.items():
                    setattr(each, name, value)


def table_of(out, name):
    with open(out / name, encoding="utf-8") as file:
        return list(csv.DictReader(file))


def points_in(out):
    """{student: points in grades.csv} of those that could be graded."""
    return {
        row["student"]: float(row["points"])
        for row in table_of(out, "grades.csv")
        if not row["problem"]
    }


def exported(out):
    """{student: score} as nbgrader's own exporter says."""
    plugin = CsvExportPlugin()
    plugin.to = str(out / "exported.csv")
    plugin.log = logging.getLogger("test")
    with opened(out) as book:
        plugin.export(book)
    return {
        row["student_id"]: float(row["score"])
        for row in table_of(out, "exported.csv")
    }


def html_of(out, student):
    path = out / "feedback" / student / LESSON / f"{LESSON}.html"
    return path.read_text(encoding="utf-8")


def test_scores_given_by_hand_count_on_page_line_and_tables(small_class):
    folder, out = small_class
    graded_by_hand(out, "anna", manual_score=0.25, extra_credit=0.5)
    said = grade(folder, out, expect=1).stdout
    due = TOTAL - POINTS["softmax"] + 0.75
    assert exported(out)["anna"] == pytest.approx(due)
    assert points_in(out) == pytest.approx(exported(out))
    assert f"anna  {LESSON}  {due:g}/{TOTAL:g}," in said
    assert f"{due:g} of {TOTAL:g} points" in html_of(out, "anna")
    (softmax,) = [
        row
        for row in table_of(out, "exercises.csv")
        if (row["student"], row["exercise"]) == ("anna", "softmax")
    ]
    assert float(softmax["points"]) == 0.75
    # Taken back, it is gone everywhere, though nothing was graded anew.
    graded_by_hand(out, "anna", manual_score=None, extra_credit=None)
    done = grade(folder, out, expect=1)
    assert done.stdout.count("unchanged") == 3
    assert points_in(out) == exported(out)
    assert exported(out)["anna"] == TOTAL
    assert f"{TOTAL:g} of {TOTAL:g} points" in html_of(out, "anna")
    assert "given by hand" not in html_of(out, "anna")


def test_a_regrade_says_what_counted_before(small_class):
    folder, out = small_class
    graded_by_hand(out, "anna", manual_score=0.25)
    done = grade(folder / "anna", out, "--force")
    assert "was" not in done.stdout  # a person's score stays
    graded_by_hand(out, "anna", manual_score=None)
    with opened(out) as book:
        (notebook,) = book.find_submission(LESSON, "anna").notebooks
        notebook.grades[0].auto_score = 0.0
        most = notebook.grades[0].max_score
    done = grade(folder / "anna", out, "--force")
    assert f"was {TOTAL - most:g}" in done.stdout


def test_a_due_date_set_after_grading_counts_without_grading_anew(
    small_class, monkeypatch
):
    folder, out = small_class
    config = gradebook._config().copy()
    config.LateSubmissionPlugin.penalty_method = "zero"
    monkeypatch.setattr(gradebook, "_config", lambda: config)
    monkeypatch.setattr(batch, "grade_one", None)  # but for the empty file
    (folder / "dirk" / LESSON / f"{LESSON}.ipynb").unlink()
    for due, points in (("11", 0), ("13", TOTAL)):
        with opened(out) as book:
            book.update_or_create_assignment(
                LESSON, duedate=f"2026-01-05 {due}:00:00 UTC"
            )
        said = grade(folder, out).stdout
        assert said.count("unchanged") == 3
        assert exported(out) == {"anna": TOTAL, "ben": TOTAL, "cleo": points}
        assert points_in(out) == exported(out)
        assert f"{points:g} of {TOTAL:g} points" in html_of(out, "cleo")
        assert ("1 hour after it was due" in html_of(out, "cleo")) == (
            points == 0
        )
        assert ("late" in said) == (points == 0)


def test_a_hand_score_after_the_penalty_is_taken_off_as_well(
    small_class, monkeypatch
):
    folder, out = small_class
    config = gradebook._config().copy()
    config.LateSubmissionPlugin.penalty_method = "zero"
    monkeypatch.setattr(gradebook, "_config", lambda: config)
    with opened(out) as book:
        book.update_or_create_assignment(
            LESSON, duedate=datetime.datetime(2026, 1, 1)
        )
    graded_by_hand(out, "cleo", extra_credit=5.0)
    grade(folder, out, expect=1)
    assert points_in(out)["cleo"] == exported(out)["cleo"] == 0


def test_who_is_no_longer_in_the_gradebook_is_in_no_table(small_class):
    folder, out = small_class
    with opened(out) as book:
        book.remove_student("cleo")
    shutil.rmtree(folder / "cleo")
    grade(folder, out, expect=1)
    assert set(points_in(out)) == set(exported(out)) == {"anna", "ben"}


def test_whose_file_is_there_is_in_the_gradebook(small_class):
    folder, out = small_class
    with opened(out) as book:
        book.remove_student("cleo")
    done = grade(folder, out, expect=1)
    assert done.stdout.count("unchanged") == 2
    assert set(points_in(out)) == set(exported(out)) == {"anna", "ben", "cleo"}


def test_pages_and_records_that_say_the_same_are_not_written_again(
    small_class,
):
    folder, out = small_class
    paths = [
        out / "feedback" / "anna" / LESSON / f"{LESSON}.html",
        out / "records" / "anna" / f"{LESSON}.json",
    ]
    before = [path.stat().st_mtime_ns for path in paths]
    grade(folder, out, expect=1)
    assert [path.stat().st_mtime_ns for path in paths] == before


def test_what_comes_to_lie_beside_a_notebook_is_told(small_class):
    folder, out = small_class
    (folder / "anna" / LESSON / "helpers.py").write_text("x = 1")
    grade(folder, out, expect=1)
    assert "helpers.py" in html_of(out, "anna")
    assert "helpers.py" not in html_of(out, "ben")


def test_a_page_that_is_gone_is_written_again(small_class):
    folder, out = small_class
    before = html_of(out, "anna")
    shutil.rmtree(out / "feedback")
    grade(folder, out, expect=1)
    assert html_of(out, "anna") == before


def test_the_last_line_counts_what_was_graded(small_class, notebook_of):
    folder, out = small_class
    write(folder, "emil", notebook_of())
    done = grade(folder, out, expect=1)
    assert done.stderr.startswith("1 submission graded in ")
    assert ", 3 unchanged, 1 could not be graded. Results" in done.stderr
    done = grade(folder / "dirk", out, expect=1)
    assert done.stderr.startswith("0 submissions graded in ")
    assert ", 1 could not be graded. Results" in done.stderr


@pytest.mark.parametrize("left", [0, 1000, 40_000], ids=str)
def test_a_damaged_gradebook_is_told_and_left_alone(small_class, left):
    folder, out = small_class
    path = out / "gradebook.db"
    os.truncate(path, left)
    done = grade(folder, out, expect=2)
    assert str(path) in done.stderr and "copy" in done.stderr
    assert done.stderr.count("\n") == 1 and not done.stdout
    assert path.stat().st_size == left


def test_a_gradebook_that_is_being_written_to_is_waited_for(
    small_class, monkeypatch
):
    folder, out = small_class
    connect = sqlite3.connect
    monkeypatch.setattr(
        batch.sqlite3, "connect", lambda path: connect(path, timeout=0)
    )
    with contextlib.closing(connect(out / "gradebook.db")) as book:
        book.execute("BEGIN EXCLUSIVE")
        done = grade(folder, out, expect=2)
    assert "wait for the program" in done.stderr
    assert "copy" not in done.stderr


def test_a_gradebook_that_is_gone_is_not_replaced_in_silence(small_class):
    folder, out = small_class
    (out / "gradebook.db").unlink()
    done = grade(folder, out, expect=1)
    first, *_ = done.stderr.splitlines()
    assert "gradebook.db is gone" in first and "given by hand" in first
    assert set(points_in(out)) == {"anna", "ben", "cleo"}
    assert "is gone" not in grade(folder, out, expect=1).stderr


def full(*args, **kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_disk_that_is_full_from_the_start_is_told(
    small_class, tmp_path, monkeypatch
):
    folder, _ = small_class
    # An empty file can be made on a full disk.
    monkeypatch.setattr(
        command.tempfile, "TemporaryFile", lambda dir: open("/dev/full", "wb")
    )
    done = grade(folder, tmp_path / "new", expect=2)
    assert "No space left" in done.stderr and done.stderr.count("\n") == 1


def test_a_disk_that_fills_up_is_told(small_class, monkeypatch):
    folder, out = small_class
    monkeypatch.setattr(records.tempfile, "mkstemp", full)
    done = grade(folder, out, "--force", expect=2)
    assert "The disk is full" in done.stderr
    assert done.stderr.count("\n") == 1 and not done.stdout


def test_a_full_disk_is_known_from_the_gradebook_s_words(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path / 'x.db'}")
    with engine.begin() as connection:
        connection.execute(text("PRAGMA max_page_count = 2"))
        connection.execute(text("CREATE TABLE x (y)"))
        with pytest.raises(OperationalError) as caught:
            connection.execute(text("INSERT INTO x VALUES (zeroblob(99999))"))
    assert batch._is_full(caught.value)
    assert not batch._is_full(ValueError("no"))


def test_a_stopped_batch_ends_what_runs_and_keeps_what_is_done(
    small_class, tmp_path, notebook_of, idle, monkeypatch
):
    folder, out = small_class

    def grade_or_wait(arrival, settings):
        if arrival.student == "emil":
            assert idle.stopped.wait(60)  # it runs until it is ended
        return all_right(arrival, settings)

    def stop_at(self, made, kept):
        print(self.text(made, kept))
        if made["student"] == "anna":
            raise KeyboardInterrupt

    monkeypatch.setattr(batch, "grade_one", grade_or_wait)
    monkeypatch.setattr(command._Lines, "record", stop_at)
    write(folder, "emil", notebook_of())
    graded_by_hand(out, "anna", manual_score=0.25)
    start = time.monotonic()
    done = grade(folder, out, expect=130)
    assert time.monotonic() - start < 10
    stopping, stopped = done.stderr.splitlines()
    assert stopping.startswith("Stopping: ") and "anew" in stopping
    assert stopped.startswith("Stopped. ")
    # The tables are those of what is done; emil's turn comes again.
    assert points_in(out) == exported(out)
    assert set(points_in(out)) == {"anna", "ben", "cleo"}


def test_a_stopped_process_is_not_started_again_by_notebooks(monkeypatch):
    process = batch._Warm(Limits())
    monkeypatch.setattr(process, "start", lambda launched=None: 1 / 0)
    process.stop()
    with pytest.raises(batch.StoppedError):
        process.session()
    with pytest.raises(ZeroDivisionError):
        process.begin()
    with pytest.raises(ZeroDivisionError):  # one that dies is started again
        process.session()


def test_stopped_in_its_first_moment_it_says_so_in_a_line(
    tmp_path, monkeypatch
):
    def stopped(required):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "launch", stopped)
    done = grade(tmp_path, tmp_path / "out", expect=130)
    assert done.stderr.startswith("Stopped.")
    assert done.stderr.count("\n") == 1


def test_two_batches_do_not_share_a_folder(course):
    folder, out, _ = course
    with open(out / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = grade(folder, out, expect=2)
    assert "Another batch" in done.stderr


def test_a_file_s_problem_stays_until_it_has_gone_or_is_good(
    tmp_path, notebook_of
):
    folder, out = tmp_path / "class", tmp_path / "out"
    good = write(folder, "anna", notebook_of())
    broken = good.with_name(f"a-{LESSON}-broken.ipynb")
    unknown = good.with_name("holiday.ipynb")
    for path in (broken, unknown, folder / "bob" / "x.ipynb"):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"%PDF")

    def rows():
        with open(out / "grades.csv", encoding="utf-8") as file:
            return sorted(
                (row["student"], row["file"].rpartition("/")[2])
                for row in csv.DictReader(file)
                if row["problem"]
            )

    bob = ("bob", "x.ipynb")
    grade(folder, out, expect=1)
    assert rows() == [("anna", broken.name), ("anna", unknown.name), bob]
    page = out / "feedback" / "anna" / LESSON / f"{LESSON}.html"
    assert f"0 of {TOTAL:g} points" in page.read_text()
    # Only her files are looked at: one has gone, one is as it was.
    broken.unlink()
    grade(folder / "anna", out, expect=1)
    assert rows() == [("anna", unknown.name), bob]
    # One of a lesson elsewhere says nothing about what lies here,
    write(tmp_path / "later", "bob", notebook_of())
    grade(tmp_path / "later", out)
    assert rows() == [("anna", unknown.name), bob]
    # and one that is good by now is a problem no more.
    (folder / "bob" / "x.ipynb").write_text(json.dumps(notebook_of()))
    unknown.unlink()
    grade(folder, out)
    assert rows() == []


def test_a_long_lived_worker_ends_the_process_of_an_earlier_batch():
    past = batch.warm_process(
        batch.Settings("s", Limits(notebook=0), lessons=("an earlier one",))
    )
    past.start()
    process = past.process
    batch.warm_process(batch.Settings("s", lessons=(LESSON,)))
    assert process.poll() is not None


def test_a_change_of_any_module_that_grades_is_noticed(tmp_path, monkeypatch):
    shutil.copytree(
        ROOT / "autograder",
        tmp_path / "autograder",
        ignore=shutil.ignore_patterns("__pycache__", "tests", "goldens"),
    )
    monkeypatch.setattr(records, "PACKAGE", tmp_path / "autograder")

    def fingerprint_with(name):
        path = tmp_path / "autograder" / f"{name}.py"
        before = path.read_bytes()
        path.write_bytes(before + b"# changed")
        records._engine.cache_clear()
        made = records.fingerprint(LESSON)
        path.write_bytes(before)
        return made

    # To measure time changes nothing.
    same = fingerprint_with("grading/bench")
    assert same == fingerprint_with("bench")
    others = {
        fingerprint_with(name)
        for name in (
            "answers",
            "goldens",
            "grading/archives",
            "grading/batch",
            "grading/colab",
            "grading/folders",
            "grading/intake",
            "grading/records",
            "grading/sandbox",
        )
    }
    assert len(others - {same}) == 9
    records._engine.cache_clear()


def test_half_characters_end_up_in_files_as_text(tmp_path):
    records.write_atomically(tmp_path / "x.csv", "M\udcfcller,ü")
    assert (tmp_path / "x.csv").read_text("utf-8") == "M\\udcfcller,ü"
    made = records.problem(Arrival("m", "M\udcfcller.ipynb", problem="no"))
    kept = records.Records(tmp_path)
    kept.write(made)
    assert kept.all() == [made]


def test_the_seed_that_is_drawn_first_counts(tmp_path, monkeypatch):
    def somebody_is_faster(count):
        (tmp_path / "seed").write_text("theirs\n")
        return "ours"

    monkeypatch.setattr(secrets, "token_hex", somebody_is_faster)
    assert recorded_seed(tmp_path) == "theirs"
    assert [path.name for path in tmp_path.iterdir()] == ["seed"]


def test_a_seed_whose_write_was_cut_short_is_drawn_again(tmp_path):
    (tmp_path / "seed").write_text("")
    seed = recorded_seed(tmp_path)
    assert len(seed) == 32 and recorded_seed(tmp_path) == seed


@pytest.mark.slow  # stock nbgrader starts a kernel for each notebook
def test_stock_nbgrader_gives_the_same_scores(tmp_path):
    bench.write_class(tmp_path / "class", 4)
    grade(tmp_path / "class", tmp_path / "ours")
    seed = (tmp_path / "ours" / "seed").read_text().strip()
    bench.timed_stock(tmp_path / "class", tmp_path / "stock", seed)
    scores = []
    for folder in ("ours", "stock"):
        path = tmp_path / folder / "gradebook.db"
        os.environ["PATH"] = bench.stock_environment(seed)["PATH"]
        with Gradebook(f"sqlite:///{path}") as book:
            scores.append(
                {
                    (each.student.id, grade_.name): grade_.auto_score
                    for each in book.assignment_submissions(LESSON)
                    for grade_ in each.notebooks[0].grades
                }
            )
    assert scores[0] == scores[1]
    assert len(set(scores[0].values())) > 3
