"""Whose notebook it is and when it was handed in, as a path tells it.

Learning management systems put names, numbers and times into the names of
folders and files, people put names there, and browsers add marks of copies.
"""

import datetime
import pathlib
import re
import unicodedata

from autograder.exercise import lessons

ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".gz")
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
    r"^.*_(?P<name>[^_]+)_[^\W\d_]+_(?P<time>\d{4}(?:-\d\d){5})"
    r"(?:_.+|\.txt)$"
)
# Folders by time or by task, which hold people's folders.
WEEK = re.compile(
    r"^(week|woche|day|unit|lesson|chapter|ch|sheet|blatt|hw|homework|lab|tp|"
    r"task|exercise|assignment)[\s_-]*\d+$",
    re.IGNORECASE,
)
# How the months begin in the languages of those who write them out.
MONTHS = (
    ("jan", "ene", "gen"),
    ("feb", "fev"),
    ("mar", "maa", "mrt", "mrz"),
    ("apr", "avr", "abr"),
    ("may", "mai", "mei", "mag"),
    ("jun", "juin", "giu"),
    ("jul", "juil", "lug"),
    ("aug", "aou", "ago"),
    ("sep", "set"),
    ("oct", "okt", "ott", "out"),
    ("nov",),
    ("dec", "dez", "dic"),
)
COPIES = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"\b(?:copy of|kopie von|copie de|copia de|cópia de)\s+",
        r"\s*\(\d+\)$",
        r"[-_ ]copy\d*$",
        r"-checkpoint$",
        r"\s*-\s*(?:kopie|copie|copia)$",
        r"[-_ ]?\bfinal\d*$",
        r"\s*\.ipynb$",
        r"[-_ ]v\d+$",
    )
]


def whose(path, lessons, above=()):
    """The name of the student whose file lies at a path, as it is written.

    path: its parts, below what was handed to the grader
    above: the folders that lead there, outermost first
    """
    found = from_lms(path)
    if found:
        return "_".join(filter(None, found))
    known = nobodys(lessons)
    # Folders of nbgrader's trees: submitted/student/lesson/notebook.
    folders = without_lessons(path[:-1], known)
    if folders:
        return folders[-1]
    stem = without_lesson(path[-1], lessons)
    outer = without_lessons(above, known)
    in_lesson = above and simple(above[-1]) in map(simple, lessons)
    # One student's folder, or one file in it.
    if outer and (len(path) > 1 or in_lesson or not stem):
        return outer[-1]
    return stem or pathlib.PurePath(path[-1]).stem


def own_name(path):
    """The name that a path tells by itself, in one form; "" if none."""
    folders = without_lessons(path[:-1], nobodys())
    name = folders[-1] if folders else without_lesson(path[-1], lessons())
    return one_form(name)


def from_lms(path):
    """(name, number) of a student as a learning management system has put
    them into a path; the number may be "". None if it comes from elsewhere.
    """
    for part in path[:-1]:
        found = MOODLE.match(part) or BRIGHTSPACE.match(part)
        if found:
            return found["name"], found["number"]
    for part in path:
        if part == path[-1] or is_archive(part):
            found = BLACKBOARD.match(part)
            if found:
                return found["name"], ""
            # Moodle's file is named so where it puts none into folders.
            found = MOODLE.match(part) or CANVAS.match(part)
            if found:
                return found["name"], found["number"]
    return None


def nobodys(names=None):
    """Folders that are nobody's: those of lessons, and of all of them, as
    they stand in a learner's copy of the course.

    names: of the lessons; as a rule, all there are
    """
    return {simple(name) for name in names or lessons()} | {"exercises"}


def without_lessons(folders, known):
    folders = list(folders)
    while folders and simple(folders[-1]) in known:
        folders.pop()
    return folders


def without_lesson(name, lessons):
    """What a file's name says beside the lesson's, or ""."""
    stem = without_copies(stem_of(name))
    for lesson in lessons:
        parts = re.split(r"[^A-Za-z0-9]+", lesson)
        pattern = r"[^A-Za-z0-9]*".join(map(re.escape, parts))
        stem = re.sub(pattern, " ", stem, flags=re.IGNORECASE)
    return without_copies(stem.strip(" _-.,"))


def one_form(name):
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
    # At the start a spreadsheet reads @ as a function's name.
    folded = re.sub(r"[^\w.@-]+", "_", folded).lstrip("._-@").rstrip("._-")
    return folded[:80] or "unnamed"


def simple(text):
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore")
    return re.sub(r"[^a-z0-9]+", "", plain.decode().lower())


def without_copies(name):
    """A file's name without what browsers and editors add to it."""
    before = None
    while before != name:
        before = name
        for pattern in COPIES:
            name = pattern.sub("", name.strip())
    return name


def stem_of(name):
    """A file's name without what says of which kind it is."""
    if is_archive(name):
        return re.sub(r"\.(zip|tar|tgz|gz|bz2|xz)\b", "", name)
    return pathlib.PurePath(name).stem


def is_archive(name):
    return name.lower().endswith(ARCHIVES)


def dated(path):
    """When a learning management system says that a file was handed in.

    returns: seconds since 1970, or 0.0 if the path does not say
    """
    for part in path:
        if BRIGHTSPACE.match(part):
            return _seconds(*_written_out(part.rpartition(" - ")[2]))
        found = BLACKBOARD.match(part)
        if found:
            return _seconds(*map(int, found["time"].split("-")))
    return 0.0


def _written_out(text):
    """Numbers of a date like "Oct 5, 2026 1130 AM" or "5 oktober 2026 1812":
    year, month, day, hour, minute; none if it is another."""
    words = [simple(word) for word in re.findall(r"[^\W\d_]+", text)]
    months = [
        number
        for word in words
        for number, starts in enumerate(MONTHS, 1)
        if word.startswith(starts)
    ]
    found = re.search(r"\b(\d\d?)\b.*?\b(\d{4})\b.*?(\d\d?)(\d\d)\b", text)
    if not months or not found:
        return ()
    day, year, hour, minute = map(int, found.groups())
    if words[-1] in ("am", "pm"):
        hour = hour % 12 + 12 * (words[-1] == "pm")
    return year, months[0], day, hour, minute


def _seconds(*numbers):
    """Seconds since 1970 at a local time, 0.0 where there is none."""
    try:
        return datetime.datetime(*numbers).timestamp()
    except (TypeError, ValueError, OverflowError):
        return 0.0
