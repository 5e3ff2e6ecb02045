"""What arrives: every student's file for a lesson, out of folders, archives
and files as people and LMSs leave them."""

import collections
import dataclasses
import hashlib
import pathlib

from autograder.grading.archives import DAMAGED
from autograder.grading.folders import (
    NOTEBOOKS,
    gathered,
    ignored,
    is_notebook,
    named_by_files,
    without_hidden,
    work_folder,
)
from autograder.grading.names import (
    BLACKBOARD,
    BRIGHTSPACE,
    dated,
    from_lms,
    identifier,
    one_form,
    simple,
    whose,
    without_copies,
)
from autograder.grading.reading import UnreadableError, read
from autograder.grading.released import released_lessons
from autograder.grading.repair import share, written

MAX_NOTE = 1000  # bytes of what nbgrader writes beside a notebook: 128 at most
# Files that come with a notebook and are nobody's answer.
COMPANIONS = (
    ".csv",
    ".txt",
    ".md",
    ".png",
    ".jpg",
    ".jpeg",
    ".svg",
    ".npz",
    ".npy",
    ".pt",
    ".pth",
    ".pkl",
    ".log",
    ".yml",
    ".yaml",
    ".html",
    ".htm",
    ".toml",
    ".pyc",
    ".gitignore",
)


@dataclasses.dataclass(frozen=True)
class Arrival:
    """One student's file for one lesson, or a file that is none.

    student: an identifier; until all are known, the name that it stands for
    name: that name, without differences that nobody sees
    digest: of its bytes, which may be many and are not kept
    problem: why it cannot be graded, "" if it can
    choices: sentences about how it was chosen among several, and whose it is
    handed_in: when, as nbgrader's timestamp.txt beside it says, or ""
    secret: by which nbgrader's exchange returns feedback, as the file beside
        it says, or ""
    """

    student: str
    label: str
    lesson: str = ""
    submitted: object = None
    digest: str = ""
    problem: str = ""
    choices: tuple[str, ...] = ()
    modified: float = 0.0
    handed_in: str = ""
    secret: str = ""
    name: str = ""


def arrivals(source, known=()):
    """Everything in a folder, an archive or a file, one entry each.

    known: {student: name} of those who have been graded before
    raises FileNotFoundError: if there is nothing at that path
    """
    source = pathlib.Path(source)
    if not source.exists():
        raise FileNotFoundError(f"{source} is not there.")
    known = dict(known)
    people = set(map(one_form, known.values()))
    everything, above = gathered(source, people)
    notes = {
        file.path: file
        for file in everything
        if file.path[-1] in ("timestamp.txt", "submission_secret.txt")
        and not file.packed  # what students write there counts for nothing
    }
    files = [file for file in everything if not ignored(file.path)]
    if named_by_files(files, people):
        above = ()
    files += _backups_alone(everything, files)
    lessons = released_lessons()
    work = work_folder(files, lessons, people)
    students = [_student(file, lessons, above, work) for file in files]
    scripts = _scripts(files, students)
    made = [
        _arrival(file, student, lessons, files, scripts)
        for file, student in zip(files, students, strict=True)
    ]
    made = [
        dataclasses.replace(
            each,
            handed_in=_noted(file, "timestamp.txt", notes),
            secret=_noted(file, "submission_secret.txt", notes),
        )
        for file, each in zip(files, made, strict=True)
        if each
    ]
    return _chosen(_without_texts(_told_apart(made, known)), lessons)


def _noted(file, name, notes):
    """What nbgrader wrote into a file beside this one, or ""."""
    try:
        data = notes[*file.path[:-1], name].read()
        # A part of a secret would return feedback to nobody.
        return data.decode().strip() if len(data) <= MAX_NOTE else ""
    except (KeyError, OSError, UnicodeDecodeError):
        return ""


def _backups_alone(everything, files):
    """Copies that Jupyter or macOS keeps, where nothing else was handed in.

    One for each folder, as a `File` that cannot be read.
    """
    places = {
        file.path[:end] for file in files for end in range(len(file.path))
    }
    alone = {}
    for file in everything:
        if ignored(file.path) and is_notebook(file.path):
            place = without_hidden(file.path)[:-1]
            if place not in places:
                alone.setdefault(place, file)
    return [
        dataclasses.replace(
            file,
            trouble="it is only a copy that Jupyter or macOS keeps for "
            "itself, and nothing else lies there: hand in the notebook",
        )
        for file in alone.values()
    ]


def _student(file, lessons, above, work=()):
    """The name of the student whose file it is."""
    path, names = without_hidden(file.path), [each.name for each in lessons]
    kept = [
        part
        for place, part in enumerate(path)
        if place in (0, len(path) - 1) or part.casefold() not in work
    ]
    return whose(tuple(kept), names, above)


def _scripts(files, students):
    """{(folder, student): names of .py files} that lie beside a notebook of
    the same student."""
    pairs = list(zip(files, students, strict=True))
    beside = {
        (file.path[:-1], student): []
        for file, student in pairs
        if is_notebook(file.path)
    }
    for file, student in pairs:
        place = file.path[:-1], student
        if file.path[-1].lower().endswith(".py") and place in beside:
            beside[place].append(file.path[-1])
    return beside


def _arrival(file, student, lessons, files, scripts):
    """A file as an `Arrival`, or None where it comes with another one."""
    suffix = pathlib.PurePath(file.path[-1]).suffix.lower()
    if file.trouble:
        return Arrival(student, file.label, problem=file.trouble)
    if suffix not in NOTEBOOKS and (
        _has_notebook(file, files) or _from_the_site(file, files)
    ):
        return None
    beside = scripts.get((file.path[:-1], student), [])
    if file.path[-1] in beside:
        return None
    choices = _about_scripts(beside)
    try:
        data = file.read()
        submitted = read(data, suffix)
    except UnreadableError as error:
        return Arrival(
            student,
            file.label,
            problem=str(error),
            lesson=_named(file.path, lessons),
            choices=choices,
        )
    except DAMAGED as error:
        why = getattr(error, "strerror", None) or error
        return Arrival(
            student,
            file.label,
            problem=f"the file cannot be read ({why}): download or pack it "
            "again",
        )
    lesson = which(submitted, file.path, lessons)
    if not lesson:
        return Arrival(
            student,
            file.label,
            problem=(
                "it has no cell of any lesson of this course: is it the right "
                "notebook?"
            ),
            choices=choices,
        )
    return Arrival(
        student,
        file.label,
        lesson,
        submitted,
        hashlib.sha256(data).hexdigest(),
        choices=(*choices, *_about_name(file.path, lesson, lessons)),
        modified=dated(file.path) or file.modified,
    )


def _about_scripts(names):
    """What to say of scripts that lie beside a notebook, as a tuple."""
    if not names:
        return ()
    return (
        f"Not used, though handed in beside the notebook: {', '.join(names)}. "
        "Only the notebook's cells are graded: put what they need into them.",
    )


def _about_name(path, lesson, lessons):
    """What to say of a path that names another lesson, as a tuple."""
    others = [
        name
        for name in (
            _named([part], lessons)
            for part in path
            if simple(lesson) not in simple(part)
        )
        if name
    ]
    if not others:
        return ()
    return (
        f"It was handed in as {others[-1]}, but its cells are those of "
        f"{lesson}, and it was graded as that. If {others[-1]} is missing, "
        "hand in its notebook, too.",
    )


def _has_notebook(file, files):
    suffix = pathlib.PurePath(file.path[-1]).suffix.lower()
    if suffix not in COMPANIONS and suffix or from_lms(file.path[-1:]):
        return False  # a site's names, not its folders, tell whose it is
    return len(file.path) > 1 and any(
        other.path[: len(file.path) - 1] == file.path[:-1]
        and other.path[-1].lower().endswith(NOTEBOOKS)
        for other in files
    )


def _from_the_site(file, files):
    """Whether a learning management system has added a file itself."""
    *folder, name = file.path
    if name == "index.html":
        return any(
            list(other.path[: len(folder)]) == folder
            and BRIGHTSPACE.match(other.path[len(folder)])
            for other in files
        )
    stem = name.removesuffix(".txt")
    return bool(BLACKBOARD.match(name)) and any(
        list(other.path[: len(folder)]) == folder
        and other.path[len(folder)].startswith(f"{stem}_")
        for other in files
    )


def which(submitted, path, lessons):
    """The lesson that a notebook answers, or ""."""
    shares = {lesson.name: share(lesson, submitted) for lesson in lessons}
    best = max(shares.values(), default=0)
    if submitted.lesson in shares and (
        best == 0 or shares[submitted.lesson] * 2 >= best
    ):
        return submitted.lesson
    if best:
        alike = [name for name in shares if shares[name] == best]
        return (
            _named(path, lessons)
            if _named(path, lessons) in alike
            else alike[0]
        )
    return ""


def _named(path, lessons):
    """The lesson that a path names, or ""."""
    for part in reversed(path):
        stem = simple(without_copies(part))
        for lesson in lessons:
            if simple(lesson.name) in stem:
                return lesson.name
    return ""


def _told_apart(made, known):
    """Arrivals with identifiers of students in place of their names.

    Names that make one identifier (Ana López, Ana Lopez) may be two people:
    each gets one of their own and keeps it, whoever comes first or later.
    """
    alike = collections.defaultdict(set)
    for student, name in known.items():
        if student == identifier(name):
            alike[student].add(name)
    for each in made:
        alike[identifier(each.student)].add(one_form(each.student))
    return [
        _identified(each, sorted(alike[identifier(each.student)]), known)
        for each in made
    ]


def _identified(arrival, names, known):
    """An arrival of the student who is one of those names."""
    name = one_form(arrival.student)
    student = _identifier_among(names, name, known)
    arrival = dataclasses.replace(arrival, student=student, name=name)
    if len(names) == 1:
        return arrival
    return dataclasses.replace(
        arrival,
        choices=(
            f"The names {' and '.join(names)} look alike; each is a student "
            f"of their own here, and {name} is {student}.",
            *arrival.choices,
        ),
    )


def _identifier_among(names, name, known):
    """The identifier of one of several names that look alike.

    The plain one is whose it was before; if nobody's, of the only name or of
    the one that is written so.
    """
    plain = identifier(name)
    own = f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    if own in known:
        return own
    if plain in known:
        return plain if known[plain] == name else own
    return plain if len(names) == 1 or name == one_form(plain) else own


def _without_texts(made):
    """Arrivals without texts that a learning management system gives beside
    a student's notebook (Moodle's "online text"); a note there says so."""
    graded = {each.student for each in made if not each.problem}
    texts, others = collections.defaultdict(list), []
    for each in made:
        if each.student in graded and _is_text_of_a_site(each):
            texts[each.student].append(each.label)
        else:
            others.append(each)
    return [
        each
        if each.problem or each.student not in texts
        else dataclasses.replace(
            each,
            choices=(
                *each.choices,
                "Not graded, as it is no notebook: "
                f"{', '.join(texts[each.student])}. A person has to read it.",
            ),
        )
        for each in others
    ]


def _is_text_of_a_site(arrival):
    return (
        bool(arrival.problem)
        and arrival.label.lower().endswith(COMPANIONS)
        and from_lms(arrival.label.split("/")) is not None
    )


def _chosen(made, lessons):
    """One arrival a student and lesson: the most complete one, of equals the
    newest."""
    known = {lesson.name: lesson for lesson in lessons}
    groups = {}
    for each in made:
        key = (
            (each.student, each.lesson)
            if not each.problem
            else (each.student, each.label, "problem")
        )
        groups.setdefault(key, []).append(each)
    chosen = []
    for group in groups.values():
        # Two members of an archive may have one name, and no lesson.
        if len(group) > 1 and not group[0].problem:
            lesson = known[group[0].lesson]
            group.sort(
                key=lambda each: (
                    written(lesson, each.submitted),
                    each.modified,
                )
            )
            best = group[-1]
            others = ", ".join(each.label for each in group[:-1])
            group = [
                dataclasses.replace(
                    best,
                    choices=(
                        *best.choices,
                        f"{len(group)} files came for this lesson; the one "
                        "with the most answers, of equals the newest, was "
                        f"graded: {best.label}. Not graded: {others}.",
                    ),
                )
            ]
        chosen.append(group[0])
    graded = {
        (each.student, each.lesson) for each in chosen if not each.problem
    }
    # A broken file beside a good one of the same lesson is told, not graded.
    return sorted(
        chosen,
        key=lambda each: (
            each.student,
            each.lesson,
            (each.student, each.lesson) in graded,
            each.label,
        ),
    )
