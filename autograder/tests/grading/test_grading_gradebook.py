"""nbgrader's gradebook in our hands, and pages and exports made from it."""

import csv
import datetime
import json
import logging

import pytest

from autograder import build
from autograder.exercise import exercises
from autograder.grading import gradebook
from autograder.grading.batch import newer_python
from autograder.grading.gradebook import Writer
from autograder.grading.intake import Arrival
from autograder.grading.plugins import CanvasExport, MoodleExport
from autograder.grading.records import record
from autograder.grading.repair import rebuild
from autograder.report import Finding, Report

LESSON = "ch1_self_attention"
POINTS = {
    name: exercise.points for name, exercise in exercises(LESSON).items()
}
TOTAL = sum(POINTS.values())


@pytest.fixture
def writer(tmp_path):
    made = Writer(tmp_path)
    yield made
    made.close()


@pytest.fixture
def record_of(lesson, notebook_of):
    """Make a record without running anything: all marks, or none."""
    from autograder.grading.reading import read

    def make(student, share=1.0):
        reports = {
            name: Report(
                name,
                exercise.points * share,
                exercise.points,
                findings=(Finding("runs", share == 1.0),),
            )
            for name, exercise in exercises(LESSON).items()
        }
        cells = rebuild(lesson, read(json.dumps(notebook_of()).encode())).cells
        return record(
            Arrival(student, "x.ipynb", LESSON),
            lesson,
            cells,
            (reports, {}, []),
            0.1,
        )

    return make


def submission(writer, student):
    writer.gradebook.db.expire_all()
    return writer.gradebook.find_submission(LESSON, student)


def test_written_twice_is_there_once(writer, record_of):
    writer.write(record_of("ann"))
    writer.write(record_of("ann", 0.5))
    assert len(writer.gradebook.assignment_submissions(LESSON)) == 1
    assert submission(writer, "ann").score == pytest.approx(TOTAL / 2)


def test_a_person_s_score_and_comment_stay_and_are_shown(
    writer, record_of, tmp_path
):
    writer.write(record_of("ann", 0.0))
    (notebook,) = submission(writer, "ann").notebooks
    for grade in notebook.grades:
        if grade.name == "check-softmax":
            grade.manual_score, grade.needs_manual_grade = 1.75, False
    for comment in notebook.comments:
        if comment.name == "softmax":
            comment.manual_comment = "Nice <b>idea</b>"
    writer.gradebook.db.commit()
    writer.close()
    again = Writer(tmp_path)
    again.write(record_of("ann", 0.0))
    assert submission(again, "ann").score == 1.75
    assert submission(again, "ann").needs_manual_grade
    assert again.touched_by_hand() == {("ann", LESSON)}
    page = (
        tmp_path / "feedback" / "ann" / LESSON / f"{LESSON}.html"
    ).read_text()
    assert "Nice &lt;b&gt;idea&lt;/b&gt;" in page
    assert "1.75 points given by hand" in page
    assert f"1.75 of {TOTAL:g} points" in page
    again.close()


def test_late_penalties_are_nbgrader_s(writer, record_of, monkeypatch):
    config = gradebook._config().copy()
    config.LateSubmissionPlugin.penalty_method = "zero"
    monkeypatch.setattr(gradebook, "_config", lambda: config)
    writer.write(record_of("ann"), "2026-01-05 12:00:00 UTC")
    assignment = writer.gradebook.find_assignment(LESSON)
    assignment.duedate = datetime.datetime(2026, 1, 5, 13)
    writer.gradebook.db.commit()
    writer.write(record_of("ann"), "2026-01-05 12:00:00 UTC")
    assert submission(writer, "ann").late_submission_penalty == 0
    writer.write(record_of("bob"), "2026-01-05 14:00:00 UTC")
    assert submission(writer, "bob").late_submission_penalty == TOTAL
    # It came in time after all.
    writer.write(record_of("bob"), "2026-01-05 12:00:00 UTC")
    assert submission(writer, "bob").late_submission_penalty == 0
    writer.write(record_of("eve"), "not a time")
    assert submission(writer, "eve").timestamp is None


def test_feedback_has_what_the_exchange_returns_it_by(
    writer, record_of, tmp_path
):
    writer.write(record_of("ann"), "2026-01-05 12:00:00 UTC", "abc")
    writer.write(record_of("bob"))
    folder = tmp_path / "feedback"
    told = {
        student: [
            (folder / student / LESSON / name).read_text()
            for name in ("timestamp.txt", "submission_secret.txt")
        ]
        for student in ("ann", "bob")
    }
    assert told["ann"] == ["2026-01-05 12:00:00 UTC", "abc"]
    assert told["bob"][0] == "" and len(told["bob"][1]) == 32
    writer.write(record_of("bob"))
    path = folder / "bob" / LESSON / "submission_secret.txt"
    assert path.read_text() == told["bob"][1]


def test_a_changed_lesson_is_noticed_and_followed(
    writer, record_of, tmp_path, monkeypatch
):
    writer.write(record_of("ann"))
    writer.close()
    marked = gradebook._marked_source

    def changed(lesson):
        made = marked(lesson)
        cells = {
            cell.metadata.nbgrader.grade_id: cell
            for cell in made.cells
            if "nbgrader" in cell.metadata
        }
        cells["check-softmax"].metadata.nbgrader.points = 9.0
        made.cells.remove(cells["check-causal_mask"])
        cells["check-luong_score"].metadata.nbgrader.grade_id = "check-new"
        return made

    monkeypatch.setattr(gradebook, "_marked_source", changed)
    again = Writer(tmp_path)
    again.write(record_of("bob"))
    (note,) = again.notes
    for text in (
        f"softmax {POINTS['softmax']:g} → 9 points",
        "causal_mask is gone",
        "new is new",
        "1 earlier result",
    ):
        assert text in note
    notebook = again.gradebook.find_notebook(LESSON, LESSON)
    names = {cell.name: cell.max_score for cell in notebook.grade_cells}
    assert names["check-softmax"] == 9 and "check-causal_mask" not in names
    assert "check-new" in names
    again.write(record_of("ann"))
    assert len(again.gradebook.assignment_submissions(LESSON)) == 2
    assert len(again.notes) == 1
    again.close()


def test_what_build_wrote_before_a_pull_does_not_count(
    writer, record_of, tmp_path, monkeypatch
):
    stale = build.source_notebook(LESSON)
    for cell in stale.cells:
        if cell.metadata.get("nbgrader", {}).get("grade"):
            cell.metadata.nbgrader.points = 77
    path = tmp_path / "old" / LESSON / f"{LESSON}.ipynb"
    path.parent.mkdir(parents=True)
    path.write_bytes(build.notebook_bytes(stale))
    monkeypatch.setattr(build, "SOURCE", tmp_path / "old")
    writer.write(record_of("ann"))
    notebook = writer.gradebook.find_notebook(LESSON, LESSON)
    assert notebook.max_score == TOTAL


def test_changed_sources_reach_the_gradebook_and_nothing_else_does(
    writer, record_of, tmp_path, monkeypatch
):
    writer.write(record_of("ann"))
    (notebook,) = submission(writer, "ann").notebooks
    for grade in notebook.grades:
        if grade.name == "check-softmax":
            grade.manual_score = 1.75
    for comment in notebook.comments:
        if comment.name == "softmax":
            comment.manual_comment = "Nice idea"
    writer.gradebook.db.commit()
    writer.close()
    made = build.source_notebook(LESSON)

    def changed(lesson):
        for cell in made.cells:
            if cell.metadata.get("nbgrader", {}).get("grade_id") == (
                "check-softmax"
            ):
                cell.source += "\n# more"
        return made

    monkeypatch.setattr(build, "source_notebook", changed)
    again = Writer(tmp_path)
    again.write(record_of("bob"))
    assert not again.notes  # no points have changed
    notebook = again.gradebook.find_notebook(LESSON, LESSON)
    cells = {cell.name: cell for cell in notebook.source_cells}
    assert cells["check-softmax"].source.endswith("# more")
    path = tmp_path / "source" / LESSON / f"{LESSON}.ipynb"
    assert path.read_bytes() == build.notebook_bytes(made)
    (notebook,) = submission(again, "ann").notebooks
    scores = {each.name: each.manual_score for each in notebook.grades}
    assert scores.pop("check-softmax") == 1.75 and not any(scores.values())
    comments = {each.manual_comment for each in notebook.comments}
    assert comments == {"Nice idea", None}
    again.close()


def test_a_lesson_that_cannot_be_read_is_said_for_each_notebook(
    writer, record_of, monkeypatch
):
    def broken(lesson):
        raise ValueError("the source is broken")

    monkeypatch.setattr(build, "source_notebook", broken)
    for student in ("ann", "bob"):
        with pytest.raises(ValueError, match="the source is broken"):
            writer.write(record_of(student))


def test_exports(writer, record_of, tmp_path):
    # An id's own digits are no number of a learning management system.
    for student, share in (("doejane_1234", 1.0), ("ann_2", 0.0)):
        made = record_of(student, share)
        if share:
            made["file"] = f"{student}_567_{LESSON}.ipynb"
        writer.write(made)
    canvas = CanvasExport()
    canvas.to = str(tmp_path / "canvas.csv")
    canvas.log = logging.getLogger("test")
    canvas.export(writer.gradebook)
    rows = list(csv.reader((tmp_path / "canvas.csv").open()))
    assert rows[0] == [
        "Student",
        "ID",
        "SIS User ID",
        "SIS Login ID",
        "Section",
        LESSON,
    ]
    assert rows[1][-1] == f"{TOTAL:g}"
    assert sorted(rows[2:]) == [
        ["ann 2", "", "", "ann_2", "", "0"],
        ["doejane", "1234", "", "", "", f"{TOTAL:g}"],
    ]
    moodle = MoodleExport()
    moodle.to = str(tmp_path / "moodle")
    moodle.log = logging.getLogger("test")
    moodle.export(writer.gradebook)
    rows = list(
        csv.reader((tmp_path / "moodle" / f"moodle_{LESSON}.csv").open())
    )
    assert [
        "Participant 1234",
        "doejane",
        "",
        f"{TOTAL:g}",
        f"{TOTAL:g}",
    ] in rows
    assert ["ann_2", "ann 2", "", "0", f"{TOTAL:g}"] in rows


@pytest.mark.parametrize(
    "file, number",
    [
        ("Jane Doe_4711_assignsubmission_file/x.ipynb", "4711"),
        ("all/Jane Doe_4711_assignsubmission_file/x.ipynb", "4711"),
        ("doejane_LATE_123_45_x.ipynb", "123"),
        ("jane_2.ipynb", None),
        ("jane_2/x.ipynb", None),
    ],
)
def test_only_files_of_a_learning_management_system_have_a_number(
    writer, record_of, file, number
):
    made = record_of("jane")
    made["file"] = file
    writer.write(made)
    assert writer.gradebook.find_student("jane").lms_user_id == number


def test_a_newer_python_is_named():
    wrong = {0: {"error": {"kind": "SyntaxError"}}}
    assert "3.99" in newer_python("3.99.1", wrong)[0]
    assert newer_python("3.99.1", {0: {"error": None}}) == []
    assert newer_python("3.8.1", wrong) == []
    assert newer_python("", wrong) == []
