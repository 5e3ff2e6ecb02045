"""Which files arrive, and in whose folders they lie."""

import collections
import dataclasses

from autograder.exercise import lessons
from autograder.grading.archives import DAMAGED, File, readable, unpacked
from autograder.grading.names import (
    WEEK,
    from_lms,
    is_archive,
    nobodys,
    one_form,
    own_name,
    simple,
    stem_of,
    without_copies,
    without_lesson,
    without_lessons,
)

MAX_DEPTH = 3  # archives in archives
NOTEBOOKS = (".ipynb", ".json", ".py")
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


def gathered(source, people):
    """(files, folders above them) of what was handed to the grader.

    The paths of a student's files begin with the student's folder, as they
    do where a whole class is handed in: who it is depends on nothing else.

    people: names of students who have been graded before
    """
    above = readable(source.resolve().parts[1:])
    if source.is_dir():
        base = _base(above, _below(source), people)
        return list(_in_folder(source, base)), _above(above, base)
    above, name = above[:-1], readable([source.name])
    file = File(name, source.read_bytes, source.stat().st_mtime)
    if is_archive(source.name):
        # A class's archive lies anywhere: the folders above say nothing.
        return list(_archive_alone(file, above, people)), ()
    base = _base(above, [name], people)
    return [dataclasses.replace(file, path=base + name)], _above(above, base)


def _in_folder(source, base):
    """Files of a folder; their paths begin with that of a student, if it is
    one's."""
    paths = sorted(source.rglob("*"))
    mute = _mute(path.relative_to(source).parts for path in paths)
    for path in paths:
        parts = (*base, *readable(path.relative_to(source).parts))
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
        home = _home(unpacked(file.read()), file.path[-1], above, people)
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
        members = unpacked(file.read())
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


def _tells(base):
    """Whether an archive's name may be that of its student, in a folder whose
    path begins so."""
    return not base or bool(_site_folder(base))


def _below(folder):
    return [
        readable(path.relative_to(folder).parts)
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
        if not ignored(path) and (is_notebook(path) or is_archive(path[-1]))
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
    inside = [path for path in _paths(members) if is_notebook(path)]
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


def _is_one_person_s(members):
    """Whether an archive holds what one student has packed."""
    notebooks = [path for path in _paths(members) if is_notebook(path)]
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


def named_by_files(files, people):
    """Whether files tell whose they are, and not the folders above.

    So it is where a lesson's folder holds several people's files
    (ch1/yan.ipynb, ch1/zoe.ipynb), or one of somebody who is known.
    """
    known, held = nobodys(), collections.defaultdict(set)
    for file in files:
        *folder, name = file.path
        if is_notebook(file.path) and not without_lessons(folder, known):
            held[tuple(folder)].add(own_name((name,)))
    return any(
        names & people or len(names) > 1 and "" not in names
        for names in held.values()
    )


def work_folder(files, lessons, people):
    """The name, in a set, of the folder that all students call their work.

    In anna/hw/ch1.ipynb and bob/hw/ch1.ipynb it is hw, and no student; in
    week1/zoe/ch1.ipynb and week2/zoe/ch2.ipynb zoe is one.
    """
    known = nobodys([each.name for each in lessons])
    paths = [
        without_lessons(without_hidden(file.path)[:-1], known)
        for file in files
        if is_notebook(file.path)
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


def ignored(path):
    """Whether a program or nbgrader, and no person, put a file there."""
    name = path[-1]
    return (
        bool(IGNORED & set(path))
        or name.startswith(("._", ".~"))
        or name.startswith(".")
        and not name.endswith(".ipynb")
    )


def _paths(files):
    """Where files lie that somebody has put there."""
    return [file.path for file in files if not ignored(file.path)]


def is_notebook(path):
    return path[-1].lower().endswith(".ipynb")


def without_hidden(path):
    """A path without the folders that programs keep for themselves."""
    return (*(part for part in path[:-1] if part not in IGNORED), path[-1])
