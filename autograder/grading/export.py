"""Grades as tables."""

import csv
import io

# A cell that begins so is a formula to a spreadsheet.
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%")


def table(header, rows):
    """A table as the text of a CSV file, with nothing that a spreadsheet
    would compute."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    for row in rows:
        writer.writerow([_harmless(value) for value in row])
    return file.getvalue()


def _harmless(value):
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, str) and value.startswith(FORMULA):
        return f"'{value}"
    return value


def grades_table(records):
    """One row a student and lesson; points are after the late penalty.

    records: as of `as_it_stands`, here and below
    """
    return table(
        [
            "student",
            "lesson",
            "points",
            "max_points",
            "repairs",
            "problem",
            "file",
            "late_penalty",
        ],
        [
            [
                made["student"],
                made["lesson"],
                made["points"],
                made["max_points"],
                len(made["repairs"]),
                made["problem"],
                made["file"],
                made.get("penalty", 0.0),
            ]
            for made in records
        ],
    )


def exercises_table(records):
    """One row a student and exercise."""
    return table(
        ["student", "lesson", "exercise", "points", "max_points", "mistake"],
        [
            [
                made["student"],
                made["lesson"],
                each["exercise"],
                each["points"],
                each["max_points"],
                " ".join(each["hints"]),
            ]
            for made in records
            for each in made["exercises"]
        ],
    )
