"""Exporters for learning management systems, as nbgrader runs them.

nbgrader export --exporter=autograder.grading.plugins.CanvasExport
nbgrader export --exporter=autograder.grading.plugins.MoodleExport --to=folder

Students whose files came from such a system have its number in the gradebook
(`lms_user_id`), so that the system recognises its own.
"""

import datetime
import pathlib

from nbgrader.api import MissingEntry
from nbgrader.plugins import ExportPlugin

from autograder.grading.export import table


class _Export(ExportPlugin):
    def chosen(self, gradebook):
        """The assignments and students that are asked for."""
        assignments = [
            each
            for each in gradebook.assignments
            if not self.assignment or each.name in self.assignment
        ]
        students = [
            each
            for each in gradebook.students
            if not self.student or each.id in self.student
        ]
        return assignments, students


def _score(gradebook, assignment, student):
    """What a student has for an assignment after penalties, or None."""
    try:
        found = gradebook.find_submission(assignment.name, student.id)
    except MissingEntry:
        return None
    return max(0.0, found.score - (found.late_submission_penalty or 0))


def _name(student):
    known = [part for part in (student.last_name, student.first_name) if part]
    # Files from a system lead to ids that end in its number.
    plain = student.id.removesuffix(f"_{student.lms_user_id}")
    return ", ".join(known) or plain.replace("_", " ")


class CanvasExport(_Export):
    """One table that Canvas imports into its gradebook."""

    def export(self, gradebook):
        assignments, students = self.chosen(gradebook)
        names = [each.name for each in assignments]
        rows = [
            [
                "    Points Possible",
                "",
                "",
                "",
                "",
                *(each.max_score for each in assignments),
            ]
        ]
        for student in students:
            scores = [_score(gradebook, each, student) for each in assignments]
            number = student.lms_user_id or ""
            login = "" if number else student.id
            rows.append(
                [
                    _name(student),
                    number,
                    "",
                    login,
                    "",
                    *("" if score is None else score for score in scores),
                ]
            )
        path = pathlib.Path(self.to or "canvas.csv")
        path.write_text(
            table(
                [
                    "Student",
                    "ID",
                    "SIS User ID",
                    "SIS Login ID",
                    "Section",
                    *names,
                ],
                rows,
            ),
            encoding="utf-8",
        )
        self.log.info("Wrote %s", path)


class MoodleExport(_Export):
    """One grading worksheet an assignment, as Moodle takes them back."""

    def export(self, gradebook):
        assignments, students = self.chosen(gradebook)
        folder = pathlib.Path(self.to or ".")
        folder.mkdir(parents=True, exist_ok=True)
        # Moodle refuses a worksheet without it, and leaves out a grade that
        # it has changed later than this.
        now = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M:%S UTC}"
        for assignment in assignments:
            rows = []
            for student in students:
                score = _score(gradebook, assignment, student)
                number = student.lms_user_id
                rows.append(
                    [
                        f"Participant {number}" if number else student.id,
                        _name(student),
                        student.email or "",
                        "" if score is None else score,
                        assignment.max_score,
                        now,
                    ]
                )
            path = folder / f"moodle_{assignment.name}.csv"
            path.write_text(
                table(
                    [
                        "Identifier",
                        "Full name",
                        "Email address",
                        "Grade",
                        "Maximum Grade",
                        "Last modified (grade)",
                    ],
                    rows,
                ),
                encoding="utf-8",
            )
            self.log.info("Wrote %s", path)
