"""From the bytes of a submitted file to its cells, whatever state it is in.

Only what a learner wrote is taken: kinds and sources of cells, and the marks
by which they can be found again. Outputs, points and other metadata are not.
"""

import dataclasses
import json
import re

MAX_BYTES = 50 * 2**20
MAX_CODE = 16 * 2**20  # characters in all cells of code; a lesson has 50,000
CONFLICT = re.compile(r"^<{7}(?: |$)", re.MULTILINE)
SCRIPT_CELL = re.compile(r"^(?:# ?%%.*|# In\[.*\]:?)$", re.MULTILINE)
DEFINES = re.compile(r"^[ \t]*(def|class|import|from) ", re.MULTILINE)
KINDS = {
    b"%PDF": "a PDF",
    b"PK\x03\x04": "a zip archive or office document",
    b"\x89PNG": "a picture",
    b"\xff\xd8\xff": "a picture",
    b"\x1f\x8b": "a compressed archive",
    b"{\\rtf": "a text document",
    b"\xd0\xcf\x11\xe0": "an office document",
    b"SQLite": "a database",
}
HAND_IN = (
    "In Jupyter choose File > Download, in Colab File > Download > "
    "Download .ipynb, and hand that file in."
)


class UnreadableError(ValueError):
    """A file holds no notebook; the text says what it is and what to do."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """A submitted cell.

    kind: "code", "markdown" or "raw"
    mark: nbgrader's grade id, "" if it has none
    """

    kind: str
    source: str
    mark: str = ""


@dataclasses.dataclass(frozen=True)
class Submitted:
    """What a file holds.

    lesson, version: what the notebook says of itself, "" where it does not
    repairs: what had to be mended to read it, as sentences
    python: the version of Python that it was saved with, "" if not said
    """

    cells: tuple[Cell, ...]
    lesson: str = ""
    version: str = ""
    python: str = ""
    repairs: tuple[str, ...] = ()


def read(data, suffix=".ipynb"):
    """The cells in a file's bytes.

    raises UnreadableError: if there are none to find
    """
    if len(data) > MAX_BYTES:
        raise UnreadableError(
            f"the file has {len(data) / 2**20:.0f} MB, more than a notebook "
            "of this course can need: clear all outputs, save, and hand it "
            "in again."
        )
    if not data.strip(b"\x00 \t\r\n"):
        raise UnreadableError(
            "the file is empty: save the notebook and hand it in again."
        )
    for magic, kind in KINDS.items():
        if data.startswith(magic):
            raise UnreadableError(
                f"the file is {kind}, not a notebook. {HAND_IN}"
            )
    text, repairs = _decoded(data)
    if suffix == ".py":
        return _script(text, repairs)
    conflict = CONFLICT.search(text)
    if conflict:
        line = text.count("\n", 0, conflict.start()) + 1
        raise UnreadableError(
            f"line {line} has a merge conflict (<<<<<<<): decide in Git "
            "which version to keep, open the notebook to see that it works, "
            "and hand it in again."
        )
    made = _parsed(text, repairs)
    return _submitted(made, repairs)


def _decoded(data):
    """A file's text, and what was odd about its encoding."""
    for mark, encoding, name in (
        (b"\xef\xbb\xbf", "utf-8-sig", ""),
        (b"\xff\xfe\x00\x00", "utf-32", "UTF-32"),
        (b"\xff\xfe", "utf-16", "UTF-16"),
        (b"\xfe\xff", "utf-16", "UTF-16"),
    ):
        if data.startswith(mark):
            try:
                text = data.decode(encoding)
            except UnicodeDecodeError:
                break
            told = [f"The file was in {name}; it was read all the same."]
            return text, told if name else [
                "The file began with a byte order mark, which was dropped."
            ]
    try:
        return data.decode("utf-8"), []
    except UnicodeDecodeError:
        pass
    half = data[:2000]
    for encoding, zero in (
        ("utf-16-le", half[1::2]),
        ("utf-16-be", half[0::2]),
    ):
        if zero.count(0) > 0.6 * len(zero):
            return (
                data.decode(encoding, errors="replace"),
                ["The file was in UTF-16; it was read all the same."],
            )
    return data.decode("cp1252", errors="replace"), [
        "The file was not in UTF-8; it was read as Windows text, so accents "
        "may look different."
    ]


def _parsed(text, repairs):
    text = text.strip("\x00 \t\r\n\ufeff")
    try:
        made = json.loads(text, strict=False)
    except RecursionError:
        raise UnreadableError(
            "the file is nested too deeply to be a notebook."
        ) from None
    except ValueError as error:
        return _salvaged(text, error, repairs)
    if isinstance(made, list) and all(isinstance(cell, dict) for cell in made):
        made = {"cells": made}
    if not isinstance(made, dict):
        raise UnreadableError(f"the file is no notebook. {HAND_IN}")
    kinds = "cells", "worksheets"  # the second until IPython 3
    if not any(isinstance(made.get(kind), list) for kind in kinds):
        # Some services wrap the notebook in another object.
        inner = next(
            (
                value
                for value in made.values()
                if isinstance(value, dict)
                and isinstance(value.get("cells"), list)
            ),
            None,
        )
        if inner is None:
            raise UnreadableError(
                f"the file has no cells, so it is no notebook. {HAND_IN}"
            )
        made = inner
    return made


def _salvaged(text, error, repairs):
    """The whole cells of a notebook that is cut off or damaged."""
    start = re.search(r'"(?:cells|worksheets)"\s*:\s*\[', text)
    cells = []
    if start:
        decoder = json.JSONDecoder(strict=False)
        place = start.end()
        while True:
            found = re.compile(r"[\s,]*").match(text, place)
            try:
                cell, place = decoder.raw_decode(text, found.end())
            except (ValueError, RecursionError):
                break
            cells.append(cell)
    # A number of thousands of digits is an error without a line.
    line = getattr(error, "lineno", 1)
    if not cells:
        kind = "a web page" if re.match(r"\s*<", text) else "no notebook"
        raise UnreadableError(
            f"the file is {kind} (it stops making sense in line {line}). "
            f"{HAND_IN}"
        )
    repairs.append(
        f"The file is damaged or cut off in line {line}: "
        f"{len(cells)} whole cells were found before that, and nothing after "
        "them could be read. Hand the notebook in again if something is "
        "missing."
    )
    about = re.search(r'"course"\s*:\s*(\{)', text)
    metadata = {}
    if about:
        try:
            metadata["course"], _ = json.JSONDecoder().raw_decode(
                text, about.start(1)
            )
        except (ValueError, RecursionError):
            pass
    return {"cells": cells, "metadata": metadata}


def _submitted(made, repairs):
    metadata = made.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    course = metadata.get("course")
    course = course if isinstance(course, dict) else {}
    language = metadata.get("language_info")
    language = language if isinstance(language, dict) else {}
    raw = made.get("cells")
    if not isinstance(raw, list):
        raw = [
            cell
            for sheet in made.get("worksheets") or ()
            if isinstance(sheet, dict) and isinstance(sheet.get("cells"), list)
            for cell in sheet["cells"]
        ]
        repairs.append(
            "The notebook is in the format of IPython 3 and "
            "older; its cells were read all the same."
        )
    elif type(made.get("nbformat")) is int and made["nbformat"] > 4:
        repairs.append(
            f"The notebook says that it has format "
            f"{made['nbformat']}, which no Jupyter writes; its "
            "cells were read as those of format 4."
        )
    cells = [_cell(cell) for cell in raw]
    lost = cells.count(None)
    if lost:
        repairs.append(
            f"{lost} cell{'s have' if lost > 1 else ' has'} no "
            "readable source and could not be used."
        )
    return Submitted(
        _measured(filter(None, cells)),
        _word(course.get("lesson")),
        _word(course.get("version")),
        _word(language.get("version")),
        tuple(repairs),
    )


def _measured(cells):
    """The cells, if they do not have absurdly much code."""
    cells = tuple(cells)
    code = [len(cell.source) for cell in cells if cell.kind == "code"]
    if sum(code) > MAX_CODE:
        raise UnreadableError(
            f"its cells have {sum(code) / 2**20:.0f} MB of code, more than "
            "answers to this course can need: delete what is not yours to "
            "hand in (data, printed output), and hand it in again."
        )
    return cells


def _word(value):
    return _whole(value[:100]) if isinstance(value, str) else ""


def _whole(text):
    """A text whose lone halves of characters, which no file can hold, are
    replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _cell(cell):
    if not isinstance(cell, dict):
        return None
    source = cell.get("source", cell.get("input", ""))
    if isinstance(source, list):
        source = "".join(part for part in source if isinstance(part, str))
    if not isinstance(source, str):
        return None
    kind = cell.get("cell_type", cell.get("type"))
    if kind == "heading":
        level = cell.get("level")
        if not (isinstance(level, int) and 1 <= level <= 6):
            level = 1
        source = "#" * level + " " + source
    if kind not in ("code", "raw"):
        kind = "markdown" if isinstance(kind, str) else "code"
    metadata = cell.get("metadata")
    mark = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    mark = mark.get("grade_id") if isinstance(mark, dict) else ""
    return Cell(kind, normal(source), _word(mark))


def normal(source):
    """A source with plain line ends, spaces and no invisible characters."""
    source = _whole(source).replace("\r\n", "\n").replace("\r", "\n")
    source = source.replace("\u2028", "\n").replace("\u2029", "\n")
    for odd in ("\ufeff", "\u200b", "\u200c", "\u200d", "\u2060"):
        source = source.replace(odd, "")
    return source.replace("\xa0", " ").replace("\x00", "")


def _script(text, repairs):
    """The cells of a notebook that was saved as a Python file."""
    text = normal(text)
    marks = list(SCRIPT_CELL.finditer(text))
    starts = [0, *(mark.end() for mark in marks)]
    ends = [*(mark.start() for mark in marks), len(text)]
    kinds = [
        "code",
        *("markdown" if "[markdown]" in mark[0] else "code" for mark in marks),
    ]
    cells = _measured(
        Cell(kind, text[start:end].strip("\n"))
        for kind, start, end in zip(kinds, starts, ends, strict=True)
        if text[start:end].strip()
    )
    if not any(DEFINES.search(cell.source) for cell in cells):
        raise UnreadableError(f"the file holds no Python code. {HAND_IN}")
    return Submitted(
        cells,
        repairs=(
            *repairs,
            "The file is a Python script, not a notebook; its code was "
            "graded all the same.",
        ),
    )
