"""nbgrader's gradebook in our hands, and pages and exports made from it."""

import csv
import datetime
import json
import logging

import pytest
from nbgrader.converters import GenerateFeedback
from nbgrader.coursedir import CourseDirectory
from nbgrader.exchange.default import ExchangeReleaseFeedback

from autograder import build
from autograder.exercise import exercises
from autograder.grading import gradebook
from autograder.grading.batch import newer_python
from autograder.grading.feedback import page
from autograder.grading.gradebook import Writer
from autograder.grading.intake import Arrival
from autograder.grading.plugins import CanvasExport, MoodleExport
from autograder.grading.records import as_it_stands, problem, record
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
    standing = again.standings()["ann", LESSON]["exercises"]["softmax"]
    assert standing["by_hand"] == standing["points"] == 1.75
    assert standing["comment"] == "Nice <b>idea</b>"
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


@pytest.fixture
def release(tmp_path):
    """Run nbgrader's release_feedback; how many pages it has released."""
    course = CourseDirectory(
        root=str(tmp_path),
        course_id="c",
        assignment_id=LESSON,
        db_url=f"sqlite:///{tmp_path / 'gradebook.db'}",
    )

    def run(generated=False):
        if generated:
            GenerateFeedback(coursedir=course, force=True).start()
        root = tmp_path / f"exchange-{generated}"
        root.mkdir()
        root.chmod(0o777)
        exchange = ExchangeReleaseFeedback(coursedir=course)
        exchange.root = str(root)
        exchange.start()
        return len(list((root / "c" / "feedback").glob("*.html")))

    return run


def test_nbgrader_releases_a_page_to_everybody(writer, record_of, release):
    writer.write(record_of("ann"), "2026-01-05 12:00:00 UTC", "abc")
    writer.write(record_of("bob"))
    writer.write(record_of("eve"), "not a time")
    writer.write(problem(Arrival("temel", "t.ipynb", LESSON, problem="no")))
    writer.write(record_of("carl"))
    writer.write(problem(Arrival("carl", "c.ipynb", LESSON, problem="no")))
    assert release() == 5
    # Its own pages take the places of ours, and are released as well.
    assert release(generated=True) == 5


def give(writer, student, exercise, **scores):
    """Set scores as the formgrader does."""
    (notebook,) = submission(writer, student).notebooks
    (grade,) = [
        each for each in notebook.grades if each.name == f"check-{exercise}"
    ]
    for name, value in scores.items():
        setattr(grade, name, value)
    writer.gradebook.db.commit()


def test_extra_credit_is_counted_and_shown(writer, record_of):
    made = record_of("ann", 0.0)
    writer.write(made)
    give(writer, "ann", "softmax", manual_score=1.75, extra_credit=0.5)
    shown = as_it_stands(made, writer.standings()["ann", LESSON])
    assert shown["points"] == submission(writer, "ann").score == 2.25
    html = page(shown)
    assert f"2.25 of {TOTAL:g} points" in html
    assert "1.75 points given by hand." in html
    assert "0.5 points of extra credit." in html


@pytest.mark.parametrize(
    "late, method, says",
    [
        (0, "zero", None),
        (30, "none", "It came less than a minute after"),
        (60, "none", "It came 1 minute after it was due; nothing taken off."),
        (2 * 3600, "zero", f"2 hours after it was due; {TOTAL:g} points"),
        (90_061, "zero", "1 day 1 hour after"),
    ],
)
def test_the_page_says_how_late_it_came_and_what_that_costs(
    writer, record_of, monkeypatch, late, method, says
):
    config = gradebook._config().copy()
    config.LateSubmissionPlugin.penalty_method = method
    monkeypatch.setattr(gradebook, "_config", lambda: config)
    due = datetime.datetime(2026, 1, 5, 12)
    writer._make_known(LESSON)
    writer.gradebook.update_or_create_assignment(LESSON, duedate=due)
    came = due + datetime.timedelta(seconds=late)
    made = record_of("ann")
    html = page(as_it_stands(made, writer.write(made, f"{came} UTC")))
    if says is None:
        assert "after it was due" not in html
    else:
        assert says in html
    points = 0 if late and method == "zero" else TOTAL
    assert f"{points:g} of {TOTAL:g} points" in html


def test_an_extension_without_a_due_date_makes_nobody_late(writer, record_of):
    writer.write(record_of("ann"), "2026-01-05 12:00:00 UTC")
    writer.gradebook.grant_extension(LESSON, "ann", days=1)
    standing = writer.write(record_of("ann"), "2026-01-05 12:00:00 UTC")
    assert standing["late"] == standing["penalty"] == 0


def test_a_penalty_method_that_fails_is_said_and_changes_nothing(
    writer, record_of, monkeypatch
):
    writer.write(record_of("ann"), "2026-01-05 12:00:00 UTC")

    def broken(self, *about):
        raise ZeroDivisionError("by hand")

    monkeypatch.setattr(
        "nbgrader.plugins.LateSubmissionPlugin.late_submission_penalty", broken
    )
    writer.gradebook.update_or_create_assignment(
        LESSON, duedate=datetime.datetime(2026, 1, 1)
    )
    writer.renew_penalties({("ann", LESSON)})
    (note,) = writer.notes
    assert "ZeroDivisionError: by hand" in note
    assert writer.standings()["ann", LESSON]["penalty"] == 0


def test_what_is_said_of_a_notebook_is_not_all_called_mended(record_of):
    made = record_of("ann")
    made["repairs"] = ["The name must be softmax."]
    html = page(made)
    before, found, _ = html.partition("The name must be softmax.")
    assert found and "How your notebook was read" in before
    assert "mended" not in before


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
    # Nothing is left to do, and that is what it says.
    (note,) = again.notes
    assert "softmax" in note and "All earlier results" in note
    assert "old points" not in note
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
    ] in [row[:5] for row in rows]
    assert ["ann_2", "ann 2", "", "0", f"{TOTAL:g}"] in [
        row[:5] for row in rows
    ]
    # Moodle's importgradeslib.php takes no worksheet without these,
    assert {"Identifier", "Grade", "Last modified (grade)"} <= set(rows[0])
    # and no grade that has been changed there after this time.
    for row in rows[1:]:
        assert rows[0][5] == "Last modified (grade)"
        written = datetime.datetime.strptime(row[5], "%Y-%m-%d %H:%M:%S UTC")
        now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
        assert abs(now - written) < datetime.timedelta(minutes=1)


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
