"""From what is authored to what is generated, for every lesson.

solutions/<lesson>.py → exercises/<lesson>/<lesson>.ipynb (what learners open)
                      → _build/nbgrader/source/… (what nbgrader releases from)
autograder/checks and solutions/answers → autograder/goldens/<lesson>.npz
book/<chapter>.md → book/<chapter>.ipynb (the Colab edition)

A rebuild from the same sources gives the same bytes.
"""

import ast
import copy
import itertools
import logging
import re
import sys
import textwrap

import jupytext
import nbformat
from nbformat.v4 import new_code_cell
from traitlets.config.loader import PyFileConfigLoader

from autograder.course import (
    ROOT,
    SourceError,
    check_id,
    released_path,
    source_address,
    stamp,
)
from autograder.exercise import exercises, lessons
from autograder.goldens import (
    golden_bytes,
    golden_entries,
    golden_is_current,
    golden_path,
)
from autograder.judging import live_standard
from autograder.notebooks import (
    COLAB,
    filled_in,
    markdown_cell,
    marked,
    notebook,
    setup_cell,
)
from autograder.report import points_text

SOURCE = ROOT / "_build" / "nbgrader" / "source"
KEPT = ROOT / "_build" / "nbgrader" / "kept"  # which `make clean` spares
LEVELS = ("warm-up", "easy", "medium", "challenge", "hard challenge")
LAST = "## What to do next"  # the heading of a lesson's last cell
MARKS = re.compile("### (BEGIN|END) SOLUTION")


def lesson_path(lesson):
    """The percent script with a lesson's tasks and references."""
    return ROOT / "solutions" / f"{lesson}.py"


def read_lesson(lesson):
    """The cells of a lesson's percent script, in order."""
    text = lesson_path(lesson).read_text(encoding="utf-8")
    return jupytext.reads(text, fmt="py:percent").cells


def source_notebook(lesson):
    """The lesson with references and hidden checks, as nbgrader takes it."""
    known, listed = exercises(lesson), []
    first, *others = read_lesson(lesson)
    if not first.source.startswith("# "):
        raise SourceError(
            f"solutions/{lesson}.py must begin with a Markdown cell that has "
            "the lesson's title: '# Title'."
        )
    cells = [_given(first, lesson), setup_cell("exercises")]
    for cell in others:
        name = cell.metadata.get("exercise")
        if name is None:
            cells.append(_given(cell, lesson))
            continue
        if name not in known:
            raise SourceError(
                f"solutions/{lesson}.py has the exercise {name!r}, which "
                f"autograder/checks/{lesson}.py does not know: add its "
                "judgement there, or correct the name."
            )
        exercise = known[name]
        listed.append(_announced(cells[-1], cell.metadata, exercise))
        if any(each.source.startswith(LAST) for each in cells):
            raise SourceError(
                f"in solutions/{lesson}.py the task of {name!r} stands after "
                f"{LAST.removeprefix('## ')!r}: move it above that cell."
            )
        _look_at_answer(cell.source, name, lesson)
        cells += [_answer_cell(cell.source, name), _check_cell(exercise)]
    _look_at_numbers(listed, lesson)
    title = first.source.partition("\n")[0].removeprefix("# ")
    about = {"title": title, "exercises": listed}
    return notebook(cells, lesson, about, **COLAB)


def _given(cell, lesson):
    if cell.cell_type == "markdown":
        return markdown_cell(_linked(cell.source))
    name = cell.metadata.get("provided")
    if not name:
        raise SourceError(
            f"solutions/{lesson}.py has a code cell that is neither an "
            'exercise nor provided: give its header exercise="…" or '
            f'provided="…". It begins with {cell.source[:60]!r}.'
        )
    return marked(new_code_cell(cell.source), name, locked=True)


def _linked(text):
    """Links from solutions/ to the book, as they go from exercises/."""
    book = source_address("book") or "../../book"
    return text.replace("](../book/", f"]({book}/")


def _announced(cell, about, exercise):
    """Put level, minutes, points and bans under the task's heading.

    returns: what the notebook's stamp says of the exercise
    """
    if cell.cell_type != "markdown" or not cell.source.startswith("## "):
        raise SourceError(
            f"the cell before exercise {exercise.name!r} must be its task: "
            "Markdown that begins with '## '."
        )
    level, minutes = about.get("level"), about.get("minutes")
    timed = isinstance(minutes, int) and minutes > 0
    if level not in range(1, len(LEVELS) + 1) or not timed:
        raise SourceError(
            f"the cell of exercise {exercise.name!r} has level={level!r} and "
            f"minutes={minutes!r} in its header: give it a level from 1 to "
            f"{len(LEVELS)} and the minutes that it takes, a whole number."
        )
    heading, _, text = cell.source.partition("\n")
    lines = [
        f"*Level {level} of {len(LEVELS)} ({LEVELS[level - 1]}) · about "
        f"{minutes} minutes · {points_text(exercise.points)}*"
    ]
    if exercise.forbids:
        # aten's own names, with an underscore, mean nothing to a learner.
        names = ", ".join(
            f"`{name}`" for name in exercise.forbids if name[0] != "_"
        )
        lines.append(
            "*Not allowed here, in any spelling, since it would be the "
            f"answer: {names}.*"
        )
    source = "\n\n".join([heading, *lines]) + "\n" + text
    cell.update(markdown_cell(source))
    return {
        "name": exercise.name,
        "title": heading.removeprefix("## "),
        "level": level,
        "minutes": minutes,
        "points": exercise.points,
    }


def _look_at_answer(source, name, lesson):
    """Raise a SourceError where an exercise's cell would make no exercise."""
    where = f"solutions/{lesson}.py, the cell of exercise {name!r}"
    try:
        made = [getattr(node, "name", None) for node in ast.parse(source).body]
    except SyntaxError as error:
        raise SourceError(
            f"{where}, line {error.lineno} of its code: {error.msg}."
        ) from None
    if name not in made:
        raise SourceError(f"{where} defines no {name}: correct the name.")
    marks = MARKS.findall(source)
    if not marks or marks != ["BEGIN", "END"] * (len(marks) // 2):
        raise SourceError(
            f"{where} has the marks {marks}: '### BEGIN SOLUTION' stands "
            "before what learners write, '### END SOLUTION' after it."
        )


def _look_at_numbers(listed, lesson):
    """Raise a SourceError where two tasks have the same number."""
    seen = set()
    for each in listed:
        number = each["title"].partition(" ")[0]
        if number in seen:
            raise SourceError(
                f"solutions/{lesson}.py has two tasks {number}: number "
                f"{each['title']!r} anew."
            )
        seen.add(number)


def _answer_cell(source, name):
    return marked(new_code_cell(source), name, solution=True)


def _check_cell(exercise):
    name = exercise.name
    source = textwrap.dedent(f"""\
        check("{name}", {name})
        ### BEGIN HIDDEN TESTS
        check("{name}", {name}, fresh=True)
        ### END HIDDEN TESTS""")
    return marked(
        new_code_cell(source),
        check_id(name),
        grade=True,
        locked=True,
        points=exercise.points,
    )


def released_notebook(lesson):
    """What learners open: nbgrader's own preprocessors applied in memory."""
    from nbgrader.converters import GenerateAssignment
    from nbgrader.preprocessors import SaveCells

    config = PyFileConfigLoader(
        "nbgrader_config.py", path=str(ROOT)
    ).load_config()
    made = copy.deepcopy(source_notebook(lesson))
    resources = {
        "nbgrader": {
            "assignment": lesson,
            "notebook": lesson,
            "student": ".",
            "db_url": "",
        },
        "unique_key": lesson,
        "output_files_dir": "",
    }
    for kind in GenerateAssignment().preprocessors:
        if kind is not SaveCells:  # the gradebook is no business of a build
            step = kind(config=config)
            step.enabled = True
            made, resources = step.preprocess(made, resources)
    return made


def notebook_bytes(made):
    """A notebook as it lies in a file."""
    return (nbformat.writes(made) + "\n").encode()


def lesson_goldens(lesson):
    """The entries of the lesson's file of goldens."""
    entries = {}
    for exercise in exercises(lesson).values():
        standard = live_standard(lesson, exercise, exercise.visible_inputs())
        entries |= golden_entries(exercise, standard.want, standard.mistakes())
    return entries


def is_chapter(path):
    """Whether a page of the book is a lesson's (or an appendix's) chapter."""
    return path.name.startswith(("ch", "appx")) and "_" in path.stem


def generated(only=()):
    """{path: bytes} of every generated file but the goldens.

    only: lessons, by default all of them
    """
    from autograder import pages

    made = {}
    for lesson in only or lessons():
        source = notebook_bytes(source_notebook(lesson))
        made[SOURCE / lesson / f"{lesson}.ipynb"] = source
        made[released_path(lesson)] = notebook_bytes(released_notebook(lesson))
    for chapter in sorted((ROOT / "book").glob("*.md")):
        if is_chapter(chapter) and chapter.stem in (only or [chapter.stem]):
            made[chapter.with_suffix(".ipynb")] = notebook_bytes(
                pages.colab_edition(chapter)
            )
    return made


def _keep_answers(path, say):
    """Copy a released notebook that somebody has filled in to `KEPT`."""
    if path.suffix != ".ipynb" or not path.exists():
        return
    text = path.read_text(encoding="utf-8")
    if not filled_in(text):
        return
    KEPT.mkdir(parents=True, exist_ok=True)
    places = (KEPT / f"{path.stem}-{n}.ipynb" for n in itertools.count(1))
    kept = next(place for place in places if not place.exists())
    kept.write_text(text, encoding="utf-8")
    say(
        f"{path.relative_to(ROOT)} was filled in: a copy is kept as "
        f"{kept.relative_to(ROOT)}"
    )


def readme(text):
    """The README with its table of lessons as the notebooks have it.

    raises SourceError: a line that the table stands between is missing
    """
    begin, end = "<!-- lessons: written by make exercises -->", "<!-- end -->"
    rows, total = [], [0, 0, 0]
    for lesson in lessons():
        if not released_path(lesson).exists():
            continue  # a lesson that is being written
        about = stamp(lesson)
        numbers = [
            len(about["exercises"]),
            sum(each["minutes"] for each in about["exercises"]),
            sum(each["points"] for each in about["exercises"]),
        ]
        total = [a + b for a, b in zip(total, numbers, strict=True)]
        rows.append([f"[{about['title']}](book/{lesson}.md)", *numbers])
    rows.append(["Together", *total])
    table = [
        "| Lesson | Exercises | Minutes | Points |",
        "|---|---:|---:|---:|",
        *(
            f"| {name} | {count} | {minutes:,} | {points:g} |"
            for name, count, minutes, points in rows
        ),
    ]
    head, begun, tail = text.partition(begin)
    old, ended, tail = tail.partition(end)
    if not begun:
        raise SourceError(f"README.md lacks the line {begin!r}.")
    if not ended or "<!--" in old:  # what ends there is another part
        raise SourceError(
            f"README.md lacks the line {end!r} below its table of lessons."
        )
    return "\n".join([head + begin, *table, end + tail])


def build(only=(), say=print):
    """Write every generated file that is not there or not current.

    only: lessons to build, by default all of them
    raises SourceError: there is no such lesson, or a source breaks a rule
    """
    for lesson in only:
        if lesson not in lessons():
            raise SourceError(
                f"{lesson!r} is no lesson; there are {', '.join(lessons())}."
            )
    logging.getLogger("traitlets").setLevel(logging.WARNING)
    for lesson in only or lessons():
        print(f"{lesson} ...", file=sys.stderr, flush=True)
        source_notebook(lesson)  # what is wrong there is told at once
        entries = lesson_goldens(lesson)
        if not golden_is_current(lesson, entries):
            path = golden_path(lesson)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(golden_bytes(entries))
            say(f"wrote {path.relative_to(ROOT)}")
    for path, data in generated(only).items():
        if not path.exists() or path.read_bytes() != data:
            path.parent.mkdir(parents=True, exist_ok=True)
            _keep_answers(path, say)
            path.write_bytes(data)
            say(f"wrote {path.relative_to(ROOT)}")
    stamp.cache_clear()
    path = ROOT / "README.md"
    text = path.read_text(encoding="utf-8")
    if readme(text) != text:
        path.write_text(readme(text), encoding="utf-8")
        say("wrote README.md's table of lessons")
