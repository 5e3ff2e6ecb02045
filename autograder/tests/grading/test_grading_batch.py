"""A class from its folder to gradebook, pages and tables."""

import contextlib
import csv
import dataclasses
import fcntl
import io
import json
import os

import nbformat
import pytest
from nbgrader.api import Gradebook

from autograder.cli import main
from autograder.exercise import exercises
from autograder.grading import bench
from autograder.grading.export import table

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
                assert "javascript:" not in cell.source
            for output in cell.get("outputs", ()):
                assert "<script" not in str(
                    output.get("data", {}).get("text/html", "")
                )


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


def test_nothing_there(tmp_path):
    done = grade(tmp_path / "no", tmp_path / "out", expect=2)
    assert "is not there" in done.stderr
    (tmp_path / "empty").mkdir()
    done = grade(tmp_path / "empty", tmp_path / "out")
    assert "No files" in done.stderr


def test_two_batches_do_not_share_a_folder(course):
    folder, out, _ = course
    with open(out / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = grade(folder, out, expect=2)
    assert "Another batch" in done.stderr


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
