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
import unicodedata
import zipfile
import zlib
from collections.abc import Callable

from autograder.exercise import lessons
from autograder.grading.reading import UnreadableError, read
from autograder.grading.released import released_lessons
from autograder.grading.repair import share, written

MAX_FILE = 60 * 2**20
MAX_TOTAL = 4 * 2**30  # bytes in one archive, unpacked
MAX_ENTRIES = 100_000
MAX_DEPTH = 3  # archives in archives
NOTEBOOKS = (".ipynb", ".json", ".py")
ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".gz")
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

MOODLE = re.compile(r"^(?P<name>.+?)_(?P<number>\d+)_assignsubmission_")
CANVAS = re.compile(
    r"^(?P<name>[^_]+)_(?:LATE_)?(?P<number>\d+)_\d+_"
    r"(?P<file>.+)$"
)
BRIGHTSPACE = re.compile(
    r"^(?P<number>\d+)-\d+ - (?P<name>.+) - .*\d{3,4}\b.*$"
)
# Title of the column, user, "attempt" in the site's language, time; a note of
# the same name says who it was.
BLACKBOARD = re.compile(
    r"^.*_(?P<name>[^_]+)_[^\W\d_]+_\d{4}(?:-\d\d){5}(?:_.+|\.txt)$"
)
COPIES = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"\b(?:copy of|kopie von|copie de|copia de|cópia de)\s+",
        r"\s*\(\d+\)$",
        r"[-_ ]copy\d*$",
        r"\s*-\s*(?:kopie|copie|copia)$",
        r"[-_ ]?\bfinal\d*$",
        r"\s*\.ipynb$",
        r"[-_ ]v\d+$",
    )
]


@dataclasses.dataclass(frozen=True)
class File:
    """A file that arrived.

    path: its parts, below what was handed to the grader
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
    files = list(_files(source))
    notes = {
        file.path: file
        for file in files
        if file.path[-1] in ("timestamp.txt", "submission_secret.txt")
        and not file.packed  # what students write there counts for nothing
    }
    files = [file for file in files if not _ignored(file)]
    lessons = released_lessons()
    above = _readable(source.resolve().parts[1:])
    if source.is_file():
        # An archive's own name says nothing, nor does where it lies.
        above = () if _is_archive(source.name) else above[:-1]
    made = [
        _arrival(file, lessons, files, above, source.is_file())
        for file in files
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
    return _chosen(_told_apart(made, dict(known)), lessons)


def _noted(file, name, notes):
    """What nbgrader wrote into a file beside this one, or ""."""
    try:
        return notes[*file.path[:-1], name].read()[:100].decode().strip()
    except (KeyError, OSError, UnicodeDecodeError):
        return ""


def _ignored(file):
    name = file.path[-1]
    return (
        bool(IGNORED & set(file.path))
        or name.startswith(("._", ".~"))
        or name.startswith(".")
        and not name.endswith(".ipynb")
    )


def _files(source):
    if source.is_dir():
        paths = sorted(source.rglob("*"))
        mute = _mute(path.relative_to(source).parts for path in paths)
        for path in paths:
            parts = _readable(path.relative_to(source).parts)
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
                    telling=path.name not in mute,
                )
    else:
        parts = _readable([source.name])
        yield from _opened(
            File(parts, source.read_bytes, source.stat().st_mtime)
        )


def _readable(names):
    """Names on disk; those that are not UTF-8 are read as Windows text."""
    return tuple(
        name.encode(errors="surrogateescape").decode("cp1252", "replace")
        if re.search("[\udc80-\udcff]", name)
        else name
        for name in names
    )


def _is_archive(name):
    return name.lower().endswith(ARCHIVES)


def _mute(paths):
    """Names of archives that tell nobody's: yan/work.zip, zoe/work.zip.

    Where a folder holds several, or is a lesson's, their names do tell:
    week1/yan.zip, week1/zoe.zip, week2/yan.zip.
    """
    known = set(map(_simple, lessons()))
    places, held = collections.defaultdict(list), collections.Counter()
    for *folder, name in paths:
        if _is_archive(name):
            places[name].append(tuple(folder))
            held[tuple(folder)] += 1
    return {
        name
        for name, folders in places.items()
        if len(folders) > 1
        and all(
            held[folder] == 1 and _without_lessons(folder, known)
            for folder in folders
        )
    }


def _opened(file, depth=0, packed=False, telling=True):
    """A file, or what is in it if it is an archive.

    packed: as of the `File`s in it
    telling: whether an archive's name may be that of its student
    """
    if file.trouble or not _is_archive(file.path[-1]):
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
        data = file.read()
        # A tar archive that ends with a zip archive looks like one, too.
        if tarfile.is_tarfile(io.BytesIO(data)):
            members = list(_tarred(data))
        else:
            members = list(_zipped(data))
        if not members:
            raise ValueError("there is nothing in it")
        one = _is_one_person_s(members)
        stem = re.sub(r"\.(zip|tar|tgz|gz|bz2|xz)\b", "", file.path[-1])
        # What was handed to the grader is named after nobody.
        if telling and (depth or len(file.path) > 1 or packed and one):
            inside += (file.path[-1] if from_lms(file.path) else stem,)
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


def _is_one_person_s(members):
    """Whether an archive holds what one student has packed."""
    names = [
        member.path[-1]
        for member in members
        if member.path[-1].lower().endswith(".ipynb") and not _ignored(member)
    ]
    if any(
        from_lms(each.path)
        for each in members
        if len(each.path) > 1
        or each.path[-1] in names
        or _is_archive(each.path[-1])
    ):
        return False
    known = set(map(_simple, lessons()))
    return (
        len(names) == 1
        or {_simple(_without_copies(name)) for name in names} <= known
        and all(len(each.path) == 1 for each in members)
    )


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


def _arrival(file, lessons, files, above, single):
    """A file as an `Arrival`, or None where it comes with another one."""
    student = whose(
        file.path, [lesson.name for lesson in lessons], above, single
    )
    suffix = pathlib.PurePath(file.path[-1]).suffix.lower()
    if file.trouble:
        return Arrival(student, file.label, problem=file.trouble)
    if suffix not in NOTEBOOKS and (
        _has_notebook(file, files) or _from_the_site(file, files)
    ):
        return None
    if suffix == ".py" and any(
        other.path[:-1] == file.path[:-1]
        and other.path[-1].lower().endswith(".ipynb")
        for other in files
    ):
        return None
    try:
        data = file.read()
        submitted = read(data, suffix)
    except UnreadableError as error:
        return Arrival(
            student,
            file.label,
            problem=str(error),
            lesson=_named(file.path, lessons),
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
        )
    return Arrival(
        student,
        file.label,
        lesson,
        submitted,
        hashlib.sha256(data).hexdigest(),
        modified=file.modified,
    )


def _has_notebook(file, files):
    suffix = pathlib.PurePath(file.path[-1]).suffix.lower()
    if suffix not in COMPANIONS and suffix:
        return False
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
        stem = _simple(_without_copies(part))
        for lesson in lessons:
            if _simple(lesson.name) in stem:
                return lesson.name
    return ""


def _without_copies(name):
    """A file's name without what browsers and editors add to it."""
    before = None
    while before != name:
        before = name
        for pattern in COPIES:
            name = pattern.sub("", name.strip())
    return name


def _simple(text):
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore")
    return re.sub(r"[^a-z0-9]+", "", plain.decode().lower())


def whose(path, lessons, above=(), single=False):
    """The name of the student whose file lies at a path, as it is written.

    path: its parts, below what was handed to the grader
    above: the folders that lead there, outermost first
    single: whether the file itself was handed to the grader
    """
    found = from_lms(path)
    if found:
        return "_".join(filter(None, found))
    known = {_simple(lesson) for lesson in lessons}
    # Folders of nbgrader's trees: submitted/student/lesson/notebook.
    folders = _without_lessons(path[:-1], known)
    if folders:
        return folders[-1]
    stem = _without_copies(pathlib.PurePath(path[-1]).stem)
    for lesson in lessons:
        parts = re.split(r"[^A-Za-z0-9]+", lesson)
        pattern = r"[^A-Za-z0-9]*".join(map(re.escape, parts))
        stem = re.sub(pattern, " ", stem, flags=re.IGNORECASE)
    stem = _without_copies(stem.strip(" _-.,"))
    outer = _without_lessons(above, known)
    # One student's folder, or one file in it.
    if outer and (
        len(path) > 1 or len(outer) < len(above) or single and not stem
    ):
        return outer[-1]
    return stem or pathlib.PurePath(path[-1]).stem


def from_lms(path):
    """(name, number) of a student as a learning management system has put
    them into a path; the number may be "". None if it comes from elsewhere.
    """
    for part in path[:-1]:
        found = MOODLE.match(part) or BRIGHTSPACE.match(part)
        if found:
            return found["name"], found["number"]
    for part in path:
        if part == path[-1] or _is_archive(part):
            found = BLACKBOARD.match(part)
            if found:
                return found["name"], ""
            found = CANVAS.match(part)
            if found:
                return found["name"], found["number"]
    return None


def _without_lessons(folders, known):
    folders = list(folders)
    while folders and _simple(folders[-1]) in known:
        folders.pop()
    return folders


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
        alike[identifier(each.student)].add(_one_form(each.student))
    return [
        _identified(each, sorted(alike[identifier(each.student)]), known)
        for each in made
    ]


def _identified(arrival, names, known):
    """An arrival of the student who is one of those names."""
    name = _one_form(arrival.student)
    student = _identifier_among(names, name, known)
    arrival = dataclasses.replace(arrival, student=student, name=name)
    if len(names) == 1:
        return arrival
    return dataclasses.replace(
        arrival,
        choices=(
            f"The names {' and '.join(names)} look alike; each is a student "
            f"of their own here, and {name} is {student}.",
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
    return plain if len(names) == 1 or name == _one_form(plain) else own


def _one_form(name):
    """A name without differences that nobody sees, or that browsers make."""
    name = re.sub(r"[\s_+]+", " ", unicodedata.normalize("NFC", name))
    return name.strip(" .-")


def identifier(name):
    """A name as it can stand in a folder's name, on any system."""
    for letter, plain in (
        ("ß", "ss"),
        ("ø", "o"),
        ("Ø", "O"),
        ("ł", "l"),
        ("Ł", "L"),
        ("æ", "ae"),
        ("Æ", "Ae"),
        ("đ", "d"),
        ("ı", "i"),
    ):
        name = name.replace(letter, plain)
    folded = unicodedata.normalize("NFKD", name)
    folded = "".join(
        letter for letter in folded if not unicodedata.combining(letter)
    )
    folded = re.sub(r"[^\w.@-]+", "_", folded).strip("._-")
    return folded[:80] or "unnamed"


def _chosen(made, lessons):
    """One arrival a student and lesson: the most complete one."""
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
        if len(group) > 1:
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
                        f"with the most answers was graded: {best.label}. "
                        f"Not graded: "
                        f"{others}.",
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
