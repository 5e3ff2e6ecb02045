"""Results in nbgrader's own gradebook and folders; there is one writer.

Formgrader, manual grading, feedback and exporters work on them as after
`nbgrader autograde`: manual scores and comments stay, and what was graded by
hand before is marked to be looked at again.
"""

import contextlib
import copy
import functools
import json
import logging
import pathlib
import re
import secrets

import nbgrader
from nbgrader.api import (
    Assignment,
    Base,
    BaseCell,
    Comment,
    Grade,
    Gradebook,
    GradeCell,
    MissingEntry,
    SolutionCell,
    SourceCell,
    SubmittedAssignment,
    SubmittedNotebook,
)
from nbgrader.utils import is_locked, parse_utc
from sqlalchemy import create_engine, text
from sqlalchemy.orm import joinedload
from traitlets.config.loader import PyFileConfigLoader

from autograder.course import ROOT, checked_by, released_path
from autograder.grading import importing
from autograder.grading.feedback import harmless_markdown, page
from autograder.grading.names import from_lms
from autograder.grading.records import (
    as_it_stands,
    report_of,
    write_atomically,
)

logging.getLogger("traitlets").setLevel(logging.WARNING)


class Writer:
    """Writes one course's results below one folder."""

    def __init__(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        path = folder / "gradebook.db"
        if not path.exists():
            _make_gradebook(path)
        self.gradebook = Gradebook(
            f"sqlite:///{path}", _config().CourseDirectory.course_id
        )
        self._known = set()
        self._changed = {}  # lesson: (how, students with older results)
        self._notes = []

    def close(self):
        self.gradebook.close()

    @property
    def notes(self):
        """Sentences about the course that somebody must read."""
        return [
            *self._notes,
            *(
                _changes(lesson, *change)
                for lesson, change in self._changed.items()
            ),
        ]

    def write(self, made, handed_in="", secret=""):
        """Put a record into gradebook, autograded/ and feedback/.

        handed_in, secret: as of an `Arrival`
        returns: how it stands then, as of `standings`; None for a file that
            could not be graded
        """
        student, lesson = made["student"], made["lesson"]
        when = _moment(handed_in)
        folders = [self._page(made).parent]
        standing = None
        if not made["problem"]:
            self._make_known(lesson)
            graded = self.folder / "autograded" / student / lesson
            write_atomically(graded / f"{lesson}.ipynb", autograded(made))
            self._save(made, when)
            if lesson in self._changed:
                self._changed[lesson][1].discard(student)
            folders.append(graded)
            standing = self.standings(student, lesson)[student, lesson]
        _put_for_exchange(folders, handed_in if when else "", secret)
        self.write_page(made, standing)
        return standing

    def _page(self, made):
        """The path of a record's feedback."""
        name = made["lesson"] or "unknown"
        return (
            self.folder / "feedback" / made["student"] / name / f"{name}.html"
        )

    def has_page(self, made):
        """Whether a record's feedback is where it was written."""
        return self._page(made).exists()

    def write_page(self, made, standing):
        """Write a record's feedback, with what people have added by hand."""
        write_atomically(self._page(made), page(as_it_stands(made, standing)))

    def standings(self, student=None, lesson=None):
        """What counts of each submission, as nbgrader exports it.

        student, lesson: to ask for one submission only
        returns: {(student, lesson): {"max_points", "late": seconds,
            "penalty": points taken off for that, "exercises": {name:
            {"points", "max_points", "by_hand": the score that a person has
            set, or None, "extra": points on top of it, "comment": text}}}}
        """
        made = {
            (who, name): {
                "max_points": most,
                "late": _seconds_late(submission),
                "penalty": penalty,
                "exercises": {},
            }
            for who, name, submission, most, penalty in self._rows(
                student,
                lesson,
                SubmittedAssignment,
                SubmittedAssignment.max_score,
                SubmittedAssignment.late_submission_penalty,
            )
        }
        for who, name, cell, score, most, by_hand, extra in self._rows(
            student,
            lesson,
            BaseCell.name,
            Grade.score,
            Grade.max_score,
            Grade.manual_score,
            Grade.extra_credit,
            kind=Grade,
        ):
            made[who, name]["exercises"][checked_by(cell) or cell] = {
                "points": score,
                "max_points": most,
                "by_hand": by_hand,
                "extra": extra or 0.0,
                "comment": "",
            }
        for who, name, cell, comment in self._rows(
            student,
            lesson,
            BaseCell.name,
            Comment.manual_comment,
            kind=Comment,
        ):
            # Comments stand at answers.
            exercise = made[who, name]["exercises"].get(cell)
            if exercise and comment:
                exercise["comment"] = comment
        return made

    def _rows(self, student, lesson, *columns, kind=None):
        """(student, lesson, *columns) of all submissions, or of one.

        student, lesson: as of `standings`
        kind: `Grade` or `Comment`, for a row for each of them
        """
        rows = self.gradebook.db.query(
            SubmittedAssignment.student_id, Assignment.name, *columns
        ).select_from(SubmittedAssignment)
        if kind:
            rows = (
                rows.join(
                    SubmittedNotebook,
                    SubmittedNotebook.assignment_id == SubmittedAssignment.id,
                )
                .join(kind, kind.notebook_id == SubmittedNotebook.id)
                .join(BaseCell, BaseCell.id == kind.cell_id)
            )
        rows = rows.join(
            Assignment, Assignment.id == SubmittedAssignment.assignment_id
        )
        if student is None:
            return rows
        return rows.filter(
            SubmittedAssignment.student_id == student,
            Assignment.name == lesson,
        )

    def renew_penalties(self, chosen):
        """Follow due dates, extensions, methods and scores that somebody has
        set since these were graded.

        chosen: the (student, lesson) of submissions
        """
        try:
            with self._together():
                for notebook in self.gradebook.db.query(
                    SubmittedNotebook
                ).options(joinedload(SubmittedNotebook.assignment)):
                    one = notebook.assignment
                    if (one.student_id, one.assignment.name) in chosen:
                        self._penalise(notebook)
        except Exception as error:  # a method of the instructor's own
            self._notes.append(
                "What lateness costs could not be computed "
                f"({type(error).__name__}: {error}): mend the penalty method "
                "that nbgrader_config.py names, and grade again."
            )

    @contextlib.contextmanager
    def _together(self):
        """One transaction: nbgrader's own calls commit after each step, and
        each time the disk has to confirm it."""
        session = self.gradebook.db
        session.commit = session.flush
        try:
            with session.no_autoflush:  # nbgrader fills rows in several steps
                yield
        except BaseException:
            session.rollback()
            raise
        finally:
            del session.commit
        session.commit()

    def _save(self, made, when):
        with self._together():
            self._fill(made, when)

    def _fill(self, made, when):
        """Put a record's scores into its submission."""
        student, lesson = made["student"], made["lesson"]
        book = self.gradebook
        number = _number(made["file"])
        book.update_or_create_student(
            student, **({"lms_user_id": number} if number else {})
        )
        submission = book.update_or_create_submission(
            lesson, student, **({"timestamp": when} if when else {})
        )
        notebook = next(
            each for each in submission.notebooks if each.name == lesson
        )
        _complete(book, notebook)
        points = {each["exercise"]: each for each in made["exercises"]}
        for grade in notebook.grades:
            exercise = points.get(checked_by(grade.name))
            if exercise is None:
                continue
            grade.auto_score = exercise["points"]
            # As nbgrader does: what somebody graded by hand is to be looked
            # at again.
            grade.needs_manual_grade = grade.manual_score is not None
        for comment in notebook.comments:
            exercise = points.get(comment.name)
            if exercise is not None:
                comment.auto_comment = (
                    None if exercise["attempted"] else "No response."
                )
        book.db.flush()
        self._penalise(notebook)

    def _penalise(self, notebook):
        """Take off what nbgrader's configured method does for lateness."""
        from nbgrader.preprocessors import AssignLatePenalties

        penalty = None
        late = _seconds_late(notebook.assignment)
        if late > 0:
            score = (
                self.gradebook.db.query(SubmittedNotebook.score)
                .filter(SubmittedNotebook.id == notebook.id)
                .scalar()
            )
            method = AssignLatePenalties(config=_config())
            method.init_plugin()
            penalty = method.plugin_inst.late_submission_penalty(
                notebook.student.id, score, late
            )
            if penalty is not None:
                penalty = min(max(penalty, 0.0), score)
        if notebook.late_submission_penalty != penalty:
            notebook.late_submission_penalty = penalty

    def _make_known(self, lesson):
        """Tell the gradebook of a lesson's cells, as a release does."""
        if lesson in self._known:
            return
        from autograder.build import notebook_bytes, source_notebook

        # What `build` has written of it may be older than the lesson.
        with importing():
            source = source_notebook(lesson)
            made = _marked_source(source)
        # formgrader lists the lessons whose source it sees.
        path = self.folder / "source" / lesson / f"{lesson}.ipynb"
        data = notebook_bytes(source)
        if not path.exists() or path.read_bytes() != data:
            write_atomically(path, data)
        self._follow(lesson, made)
        self._known.add(lesson)

    def _follow(self, lesson, made):
        """Bring the gradebook's cells of a lesson up to its source."""
        book = self.gradebook
        try:
            notebook = book.find_notebook(lesson, lesson)
        except MissingEntry:
            notebook = None
        else:
            if _stored(notebook) == _due(made):
                return
            self._note_change(notebook, _points(made))
        with self._together():
            if notebook is None:
                book.update_or_create_assignment(lesson)
                notebook = book.add_notebook(
                    lesson,
                    lesson,
                    kernelspec=json.dumps(made.metadata.get("kernelspec", {})),
                )
            _put_cells(book.db, notebook, made)
        book.db.expire_all()

    def _note_change(self, notebook, due):
        """Say how points have changed after notebooks were graded."""
        old, _ = _stored(notebook)
        if old == due or not notebook.submissions:
            return
        told = [
            f"{checked_by(name)} {old[name]:g} → {due[name]:g} points"
            for name in due
            if name in old and old[name] != due[name]
        ]
        told += [
            f"{checked_by(name)} is new" for name in due if name not in old
        ]
        told += [
            f"{checked_by(name)} is gone" for name in old if name not in due
        ]
        self._changed[notebook.name] = (
            told,
            {each.student.id for each in notebook.submissions},
        )


def _changes(lesson, told, older):
    """A sentence on how points have changed, and what to do.

    told: each change
    older: the students whose results were made with the old points
    """
    count = len(older)
    if not count:
        then = "All earlier results have been graded again."
    elif count == 1:
        then = "1 earlier result was made with the old points: grade it again."
    else:
        then = (
            f"{count} earlier results were made with the old points: grade "
            "all of them again."
        )
    return (
        f"{lesson} has changed since it was graded first: {', '.join(told)}. "
        f"{then}"
    )


def _put_for_exchange(folders, handed_in, secret):
    """What nbgrader's `release_feedback` reads beside each page, and what its
    `generate_feedback` brings there from autograded/.

    It stops at the first page without them, so they are there for everybody,
    also for those whose notebooks came another way or cannot be graded.
    """
    for folder in folders:
        write_atomically(folder / "timestamp.txt", handed_in)
    paths = [folder / "submission_secret.txt" for folder in folders]
    known = [path.read_text("utf-8") for path in paths if path.exists()]
    secret = secret or (known or [secrets.token_hex(16)])[0]
    for path in paths:
        write_atomically(path, secret)


def _put_cells(db, notebook, made):
    """Make a notebook's cells in the gradebook those of its source.

    nbgrader's SaveCells refuses that once the notebook has been graded, and
    its `update_or_create_…` look for notebook and cell in the database again
    for each of them.
    """
    cells = {
        cell.metadata.nbgrader.grade_id: cell
        for cell in made.cells
        if "nbgrader" in cell.metadata
    }
    there = {
        (type(cell), cell.name): cell
        for cell in [
            *notebook.grade_cells,
            *notebook.solution_cells,
            *notebook.source_cells,
        ]
    }
    for (_, name), cell in there.items():
        if name not in cells:
            for kind in (Grade, Comment):
                db.query(kind).filter(kind.cell_id == cell.id).delete()
            db.delete(cell)
    db.flush()

    def put(kind, name, **values):
        cell = there.get((kind, name)) or kind(name=name, notebook=notebook)
        for key, value in values.items():
            setattr(cell, key, value)
        db.add(cell)

    for name, cell in cells.items():
        about = cell.metadata.nbgrader
        if about.grade:
            put(
                GradeCell,
                name,
                max_score=float(about.points),
                cell_type=cell.cell_type,
            )
        if about.solution:
            put(SolutionCell, name)
        put(
            SourceCell,
            name,
            cell_type=cell.cell_type,
            source=cell.source,
            locked=is_locked(cell),
            checksum=about.get("checksum"),
        )


def _complete(book, notebook):
    """Give a submission grades and comments for cells that came later."""
    for kind, cells, there in (
        (Grade, notebook.notebook.grade_cells, notebook.grades),
        (Comment, notebook.notebook.solution_cells, notebook.comments),
    ):
        known = {each.cell_id for each in there}
        for cell in cells:
            if cell.id not in known:
                book.db.add(kind(cell=cell, notebook=notebook))
    book.db.flush()


def _points(made):
    return {
        cell.metadata.nbgrader.grade_id: float(cell.metadata.nbgrader.points)
        for cell in made.cells
        if cell.metadata.get("nbgrader", {}).get("grade")
    }


def _stored(notebook):
    """(points, checksums) of the cells that the gradebook has, by grade id."""
    return (
        {cell.name: cell.max_score for cell in notebook.grade_cells},
        {cell.name: cell.checksum for cell in notebook.source_cells},
    )


def _due(made):
    """What `_stored` should be for a lesson's source."""
    return _points(made), {
        cell.metadata.nbgrader.grade_id: cell.metadata.nbgrader.get("checksum")
        for cell in made.cells
        if "nbgrader" in cell.metadata
    }


def _number(label):
    """The number that a learning management system has for a student.

    label: as of an `Arrival`
    returns: "" for a file that does not come from one
    """
    _, number = from_lms(label.split("/")) or ("", "")
    return number


def _seconds_late(submission):
    """How much later than due, with extensions, a submission came."""
    if submission.assignment.duedate is None:
        return 0.0  # nbgrader's own sum fails if there is an extension
    return float(submission.total_seconds_late)


def _moment(text):
    """A time as nbgrader writes it, or None."""
    if not text:
        return None
    try:
        return parse_utc(text)
    except (ValueError, OverflowError, TypeError):
        return None


@functools.cache
def _config():
    return PyFileConfigLoader(
        "nbgrader_config.py", path=str(ROOT)
    ).load_config()


def _make_gradebook(path):
    """Make an empty gradebook as nbgrader does, there whole or not at all.

    nbgrader asks the command `alembic` for the version, which is on the path
    of an activated environment only.
    """
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    engine = create_engine(f"sqlite:///{new}")
    with engine.begin() as connection:
        # Nobody has it yet, so the disk need not confirm each table.
        connection.execute(text("PRAGMA synchronous = OFF"))
        Base.metadata.create_all(bind=connection)
        connection.execute(
            text(
                "CREATE TABLE alembic_version ("
                "version_num VARCHAR(32) NOT NULL)"
            )
        )
        connection.execute(
            text("INSERT INTO alembic_version VALUES (:it)"),
            {"it": _version()},
        )
    engine.dispose()
    new.rename(path)


def _version():
    """The version of nbgrader's tables: the one that no other follows.

    alembic knows it, too, but to import it takes a tenth of a second.
    """
    folder = pathlib.Path(nbgrader.__file__).parent / "alembic" / "versions"
    texts = [path.read_text(encoding="utf-8") for path in folder.glob("*.py")]
    versions, followed = (
        {
            found[1]
            for text in texts
            for found in re.finditer(pattern, text, re.MULTILINE)
        }
        for pattern in (
            r"^revision = ['\"](\w+)",
            r"^down_revision = ['\"](\w+)",
        )
    )
    (head,) = versions - followed
    return head


def _marked_source(source):
    """A lesson's source as nbgrader saves its cells when releasing."""
    from nbgrader.preprocessors import (
        ClearSolutions,
        ComputeChecksums,
        LockCells,
    )

    made = copy.deepcopy(source)
    config = _config()
    resources = {}
    for kind in (ClearSolutions, LockCells, ComputeChecksums):
        made, resources = kind(config=config).preprocess(made, resources)
    return made


@functools.cache
def _released(lesson):
    return json.loads(released_path(lesson).read_text(encoding="utf-8"))


def autograded(made):
    """A record as the notebook that formgrader shows, as JSON text."""
    released = _released(made["lesson"])
    given = iter(released["cells"])
    reports = {each["exercise"]: report_of(each) for each in made["exercises"]}
    cells = []
    for index, cell in enumerate(made["cells"]):
        if cell["role"] == "own":
            base = {
                "id": f"own-{index}",
                "metadata": {},
                "cell_type": cell["kind"],
            }
        else:
            base = dict(next(given))
        code = cell["kind"] == "code"
        source = cell["source"]
        if cell["role"] in ("own", "answer") and not code:
            source = harmless_markdown(source)
        base["source"] = source
        if code:
            base["execution_count"] = None
            base["outputs"] = _outputs(cell, reports)
        cells.append(base)
    metadata = {
        **released["metadata"],
        "course": {
            key: released["metadata"]["course"][key]
            for key in ("lesson", "version")
        },
    }
    return (
        json.dumps(
            {**released, "cells": cells, "metadata": metadata},
            indent=1,
            ensure_ascii=False,
        )
        + "\n"
    )


def _outputs(cell, reports):
    if cell["role"] == "check":
        report = reports.get(checked_by(cell["name"]))
        return (
            []
            if report is None
            else [
                {
                    "output_type": "execute_result",
                    "execution_count": None,
                    "metadata": {},
                    "data": {
                        "text/plain": repr(report),
                        "text/html": report._repr_html_(),
                    },
                }
            ]
        )
    output = cell["output"] or {}
    made = []
    if output.get("text"):
        made.append(
            {"output_type": "stream", "name": "stdout", "text": output["text"]}
        )
    for data in output.get("shown", ()):
        made.append(
            {"output_type": "display_data", "metadata": {}, "data": data}
        )
    return made
