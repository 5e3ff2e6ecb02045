"""What arrives: folders, archives and files as people and LMSs leave them.

Finds every file, whose it is and which lesson it answers. Archives are read
in memory and never unpacked, so no name in one can lead anywhere.
"""

import collections
import dataclasses
import hashlib
import io
import lzma
import pathlib
import re
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable

from autograder.exercise import lessons
from autograder.grading.names import (
    BLACKBOARD,
    BRIGHTSPACE,
    WEEK,
    dated,
    from_lms,
    identifier,
    is_archive,
    nobodys,
    one_form,
    own_name,
    simple,
    stem_of,
    whose,
    without_copies,
    without_lesson,
    without_lessons,
)
from autograder.grading.reading import UnreadableError, read
from autograder.grading.released import released_lessons
from autograder.grading.repair import share, written

MAX_FILE = 60 * 2**20
MAX_TOTAL = 4 * 2**30  # bytes in one archive, unpacked
MAX_ENTRIES = 100_000
MAX_DEPTH = 3  # archives in archives
MAX_NOTE = 1000  # bytes of what nbgrader writes beside a notebook: 128 at most
NOTEBOOKS = (".ipynb", ".json", ".py")
# What reading a damaged file or archive raises, at once or member by member.
DAMAGED = (
    OSError,
    ValueError,
    EOFError,
    RuntimeError,
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
)
IGNORED = {
    ".ipynb_checkpoints",
    "__MACOSX",
    "__pycache__",
    ".git",
    ".DS_Store",
    "Thumbs.db",
    "desktop.ini",
    "timestamp.txt",
    "submission_secret.txt",
}
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
class File:
    """A file that arrived.

    path: its parts, below what was handed to the grader; where that is a
        student's folder, or in it, from that folder on
    read(): its bytes
    trouble: why it cannot even be read, "" if it can
    packed: whether it comes from an archive that a student may have packed
    """

    path: tuple[str, ...]
    read: Callable
    modified: float = 0.0
    trouble: str = ""
    packed: bool = False

    @property
    def label(self):
        return "/".join(self.path)


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
    everything, above = _gathered(source, people)
    notes = {
        file.path: file
        for file in everything
        if file.path[-1] in ("timestamp.txt", "submission_secret.txt")
        and not file.packed  # what students write there counts for nothing
    }
    files = [file for file in everything if not _ignored(file.path)]
    if _named_by_files(files, people):
        above = ()
    files += _backups_alone(everything, files)
    lessons = released_lessons()
    work = _work_folder(files, lessons, people)
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


def _ignored(path):
    name = path[-1]
    return (
        bool(IGNORED & set(path))
        or name.startswith(("._", ".~"))
        or name.startswith(".")
        and not name.endswith(".ipynb")
    )


def _backups_alone(everything, files):
    """Copies that Jupyter or macOS keeps, where nothing else was handed in.

    One for each folder, as a `File` that cannot be read.
    """
    places = {
        file.path[:end] for file in files for end in range(len(file.path))
    }
    alone = {}
    for file in everything:
        if _ignored(file.path) and _is_notebook(file.path):
            place = _without_hidden(file.path)[:-1]
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


def _without_hidden(path):
    """A path without the folders that programs keep for themselves."""
    return (*(part for part in path[:-1] if part not in IGNORED), path[-1])


def _gathered(source, people):
    """(files, folders above them) of what was handed to the grader.

    The paths of a student's files begin with the student's folder, as they
    do where a whole class is handed in: who it is depends on nothing else.

    people: names of students who have been graded before
    """
    above = _readable(source.resolve().parts[1:])
    if source.is_dir():
        base = _base(above, _below(source), people)
        return list(_in_folder(source, base)), _above(above, base)
    above, name = above[:-1], _readable([source.name])
    file = File(name, source.read_bytes, source.stat().st_mtime)
    if is_archive(source.name):
        # A class's archive lies anywhere: the folders above say nothing.
        return list(_archive_alone(file, above, people)), ()
    base = _base(above, [name], people)
    return [dataclasses.replace(file, path=base + name)], _above(above, base)


def _below(folder):
    return [
        _readable(path.relative_to(folder).parts)
        for path in folder.rglob("*")
        if path.is_file()
    ]


def _above(above, base):
    return above[: len(above) - len(base)]


def _base(above, paths, people):
    """The last folders of those above, from a student's on.

    () where the folder that was handed in is not a student's, or may be one
    of a whole class.

    paths: of the files below
    people: names of students who have been graded before
    """
    base = _site_folder(above)
    outer = without_lessons(above, nobodys())
    if base or not outer:
        return base
    base = above[len(outer) - 1 :]
    own = {
        own_name(path)
        for path in paths
        if not _ignored(path) and (_is_notebook(path) or is_archive(path[-1]))
    }
    if own - {""} or not own:
        theirs = one_form(outer[-1]) in people
        return base if theirs and not own & people else ()
    # Archives that are named after a lesson may be those of a class.
    return () if any(is_archive(path[-1]) for path in paths) else base


def _site_folder(above):
    """The last folders of those above, from one that a learning management
    system made for a student on; () if there is none."""
    for index, part in enumerate(above):
        if from_lms((part, "")):
            return above[index:]
    return ()


def _is_notebook(path):
    return path[-1].lower().endswith(".ipynb")


def _in_folder(source, base):
    """Files of a folder; their paths begin with that of a student, if it is
    one's."""
    paths = sorted(source.rglob("*"))
    mute = _mute(path.relative_to(source).parts for path in paths)
    for path in paths:
        parts = (*base, *_readable(path.relative_to(source).parts))
        if path.is_symlink():
            if path.suffix in NOTEBOOKS:
                yield File(
                    parts,
                    bytes,
                    trouble="it is a link, which "
                    "may lead anywhere: put the file itself here",
                )
        elif path.is_file():
            yield from _opened(
                File(parts, path.read_bytes, path.stat().st_mtime),
                packed=True,
                telling=path.name not in mute and _tells(base),
            )


def _archive_alone(file, above, people):
    """What is in an archive that was handed to the grader by itself."""
    try:
        home = _home(_members(file.read()), file.path[-1], above, people)
    except DAMAGED:
        home = None  # it is told when it is opened
    if home is None:
        yield from _opened(file)
        return
    yield from _opened(
        dataclasses.replace(file, path=(*home, *file.path)),
        packed=True,
        telling=_tells(home),
    )


def _tells(base):
    """Whether an archive's name may be that of its student, in a folder whose
    path begins so."""
    return not base or bool(_site_folder(base))


def _home(members, name, above, people):
    """The folders of the student whose archive it is; () where the archive
    is named after the student, None where it may be that of a class."""
    home = _site_folder(above)
    if home:
        return home
    if not _is_one_person_s(members) or any(
        from_lms(each.path) or is_archive(each.path[-1]) for each in members
    ):
        return None
    inside = [path for path in _paths(members) if _is_notebook(path)]
    known, own = nobodys(), own_name((name,))
    names = set(map(own_name, inside))
    outer = without_lessons(above, known)
    if from_lms((name,)) or own in people:
        return ()
    if names & people:
        return None
    if outer and one_form(outer[-1]) in people:
        return tuple(outer[-1:])
    if any(without_lessons(path[:-1], known) for path in inside):
        return None
    if own:
        return ()
    return tuple(outer[-1:]) if outer and names == {""} else None


def _named_by_files(files, people):
    """Whether files tell whose they are, and not the folders above.

    So it is where a lesson's folder holds several people's files
    (ch1/yan.ipynb, ch1/zoe.ipynb), or one of somebody who is known.
    """
    known, held = nobodys(), collections.defaultdict(set)
    for file in files:
        *folder, name = file.path
        if _is_notebook(file.path) and not without_lessons(folder, known):
            held[tuple(folder)].add(own_name((name,)))
    return any(
        names & people or len(names) > 1 and "" not in names
        for names in held.values()
    )


def _readable(names):
    """Names on disk; those that are not UTF-8 are read as Windows text."""
    return tuple(
        name.encode(errors="surrogateescape").decode("cp1252", "replace")
        if re.search("[\udc80-\udcff]", name)
        else name
        for name in names
    )


def _mute(paths):
    """Names of archives that tell nobody's: yan/work.zip, zoe/work.zip.

    Where a folder holds several, or is a lesson's, their names do tell:
    week1/yan.zip, week1/zoe.zip, week2/yan.zip.
    """
    known = nobodys()
    places, held = collections.defaultdict(list), collections.Counter()
    for *folder, name in paths:
        if is_archive(name):
            places[name].append(tuple(folder))
            held[tuple(folder)] += 1
    return {
        name
        for name, folders in places.items()
        if len(folders) > 1
        and all(
            held[folder] == 1 and without_lessons(folder, known)
            for folder in folders
        )
    }


def _opened(file, depth=0, packed=False, telling=True):
    """A file, or what is in it if it is an archive.

    packed: as of the `File`s in it
    telling: whether an archive's name may be that of its student
    """
    if file.trouble or not is_archive(file.path[-1]):
        yield file
        return
    inside = file.path[:-1]
    if depth >= MAX_DEPTH:
        yield dataclasses.replace(
            file,
            trouble="it is an archive in an "
            "archive in an archive: unpack it first",
        )
        return
    try:
        members = _members(file.read())
        if not members:
            raise ValueError("there is nothing in it")
        one = _is_one_person_s(members)
        # A class's archive is named after nobody.
        if telling and (depth or len(file.path) > 1 or packed and one):
            name = file.path[-1]
            inside += (name if from_lms(file.path) else _named_after(name),)
        mute = _mute(member.path for member in members)
        for member in members:
            below = member.path[-1:] if one and packed else member.path
            yield from _opened(
                dataclasses.replace(
                    member, path=inside + below, packed=packed
                ),
                depth + 1,
                packed=True,
                telling=member.path[-1] not in mute,
            )
    except DAMAGED as error:
        yield dataclasses.replace(
            file,
            trouble=f"it is no archive that can be read ({error}): "
            "download or pack it again",
        )


def _named_after(name):
    """What an archive is named after: as a rule, its student."""
    return without_lesson(name, lessons()) or stem_of(name)


def _members(data):
    """The `File`s in an archive's bytes."""
    # A tar archive that ends with a zip archive looks like one, too.
    if tarfile.is_tarfile(io.BytesIO(data)):
        return list(_tarred(data))
    return list(_zipped(data))


def _is_one_person_s(members):
    """Whether an archive holds what one student has packed."""
    notebooks = [path for path in _paths(members) if _is_notebook(path)]
    names = {path[-1] for path in notebooks}
    if any(
        from_lms(each.path)
        for each in members
        if len(each.path) > 1
        or each.path[-1] in names
        or is_archive(each.path[-1])
    ):
        return False
    if len(notebooks) < 2:
        return bool(notebooks) or all(len(each.path) == 1 for each in members)
    known = nobodys()
    homes = {tuple(without_lessons(path[:-1], known)) for path in notebooks}
    return (
        len(homes) == 1
        and {simple(without_copies(name)) for name in names} <= known
    )


def _paths(files):
    """Where files lie that somebody has put there."""
    return [file.path for file in files if not _ignored(file.path)]


def _zipped(data):
    archive = zipfile.ZipFile(io.BytesIO(data))
    entries = [info for info in archive.infolist() if not info.is_dir()]
    _measure(sum(info.file_size for info in entries), len(entries))
    for info in entries:
        name = info.filename
        if not info.flag_bits & 0x800:
            # Without the mark for UTF-8 it was decoded as a code page of DOS.
            try:
                name = name.encode("cp437").decode("utf-8")
            except UnicodeError:
                pass
        yield File(
            _parts(name),
            _member(archive, info),
            time.mktime((*info.date_time, 0, 0, -1)),
            trouble="it is locked with a password"
            if info.flag_bits & 1
            else _too_large(info.file_size),
        )


def _member(archive, info):
    def read_member():
        with archive.open(info) as file:
            return file.read(MAX_FILE + 1)

    return read_member


def _tarred(data):
    archive = tarfile.open(fileobj=io.BytesIO(data))
    entries, total = [], 0
    for info in archive:
        entries.append(info)
        total += info.size
        _measure(total, len(entries))
    for info in entries:
        if info.isfile():
            yield File(
                _parts(info.name),
                archive.extractfile(info).read,
                info.mtime,
                _too_large(info.size),
            )
        elif info.issym() or info.islnk():
            yield File(
                _parts(info.name),
                bytes,
                trouble="it is a link: put the file itself into the archive",
            )


def _measure(size, count):
    if size > MAX_TOTAL or count > MAX_ENTRIES:
        raise ValueError("it would unpack to an absurd size")


def _too_large(size):
    return "it is too large for a notebook" if size > MAX_FILE else ""


def _parts(name):
    parts = [
        part
        for part in re.split(r"[\\/]+", name)
        if part not in ("", ".", "..")
    ]
    return _readable(parts) or ("unnamed",)


def _work_folder(files, lessons, people):
    """The name, in a set, of the folder that all students call their work.

    In anna/hw/ch1.ipynb and bob/hw/ch1.ipynb it is hw, and no student; in
    week1/zoe/ch1.ipynb and week2/zoe/ch2.ipynb zoe is one.
    """
    known = nobodys([each.name for each in lessons])
    paths = [
        without_lessons(_without_hidden(file.path)[:-1], known)
        for file in files
        if _is_notebook(file.path)
    ]
    if not paths or min(map(len, paths)) < 2:
        return set()
    # Not `simple`, in which names without Latin letters are all the same.
    inner = {path[-1].casefold() for path in paths}
    outer = {path[-2] for path in paths}
    is_person = len(inner) > 1 or one_form(paths[0][-1]) in people
    is_place = any(WEEK.match(each) or simple(each) in known for each in outer)
    if is_person or is_place or len(outer) == 1:
        return set()
    return inner


def _student(file, lessons, above, work=()):
    """The name of the student whose file it is."""
    path, names = _without_hidden(file.path), [each.name for each in lessons]
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
        if _is_notebook(file.path)
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
