"""Whose file, and which lesson, from what LMSs and people leave."""

import io
import itertools
import json
import os
import random
import re
import shutil
import tarfile
import unicodedata
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autograder.grading import archives
from autograder.grading.intake import arrivals
from autograder.grading.names import from_lms, identifier, whose

LESSON = "ch1_self_attention"


@pytest.mark.parametrize(
    "path, student",
    [
        ("alice/ch1_self_attention/ch1_self_attention.ipynb", "alice"),
        ("submitted/bob/ch1_self_attention/x.ipynb", "bob"),
        ("carol/x.ipynb", "carol"),
        ("carol/CH1_Self_Attention/x.ipynb", "carol"),
        ("ch1_self_attention/dora/x.ipynb", "dora"),
        ("erika.ipynb", "erika"),
        ("ch1_self_attention_frank.ipynb", "frank"),
        ("frank - Copy of ch1_self_attention (1).ipynb", "frank"),
        ("Copy of ch1 self attention Gül Şen.ipynb", "Gul_Sen"),
        ("Müller, Jörg-Copy1.ipynb", "Muller_Jorg"),
        ("Anna Groß_4711_assignsubmission_file_/a.ipynb", "Anna_Gross_4711"),
        (
            "Anna Groß_4711_assignsubmission_file/ch1_self_attention/a.ipynb",
            "Anna_Gross_4711",
        ),
        ("doejane_LATE_1234_98765_ch1_self_attention-1.ipynb", "doejane_1234"),
        ("doejane_1234_98765_ch1_self_attention.ipynb", "doejane_1234"),
        ("a b@c.de/x.ipynb", "a_b@c.de"),
        ("../../etc/x.ipynb", "etc"),
        ("=cmd()/x.ipynb", "cmd"),
    ],
)
def test_whose(path, student):
    assert identifier(whose(tuple(path.split("/")), [LESSON])) == student


NAMES = st.text(st.sampled_from("abdegilmnorstuvyäéşß"), min_size=3)
PATHS = [
    "{who}/{lesson}.ipynb",
    "{who}/{lesson}/{lesson}.ipynb",
    "{who}/Copy of {lesson}.ipynb",
    "{who}/{lesson}-Copy1.ipynb",
    "{who}/{LESSON} (2).ipynb",
    "submitted/{who}/{lesson}/Untitled.ipynb",
    "{lesson}_{who}.ipynb",
    "{who} - Kopie von {lesson} (1).ipynb",
    "{who}.ipynb",
    "{lesson}/{who}/x.ipynb",
]


@settings(max_examples=60, deadline=None)
@given(NAMES, st.sampled_from(PATHS), st.sampled_from(PATHS))
def test_a_renamed_file_stays_its_student_s(name, one, other):
    students = {
        whose(
            tuple(
                path.format(
                    who=f"Q{name}", lesson=LESSON, LESSON=LESSON.upper()
                ).split("/")
            ),
            [LESSON],
        )
        for path in (one, other)
    }
    assert len(students) == 1


@pytest.mark.parametrize(
    "above, path, student",
    [
        ("course/alice", f"{LESSON}/x.ipynb", "alice"),
        (f"course/alice/{LESSON}", "x.ipynb", "alice"),
        ("course/alice", f"{LESSON}.ipynb", "alice"),
        ("course/alice", "bob.ipynb", "bob"),
        ("course/exercises", "bob.ipynb", "bob"),
    ],
)
def test_whose_is_what_was_named_alone(above, path, student):
    path = tuple(path.split("/"))
    assert whose(path, [LESSON], above.split("/")) == student


MOODLE = "{who}_12_assignsubmission_file_"
BRIGHTSPACE = "12-7 - {who} - Oct 5, 2026 1130 AM"
BLACKBOARD = "Lesson 1_{who}_attempt_2026-10-05-11-30-00_x"
# (path, what an archive there holds, whether nobody has to know the student
# to tell whose a part of the class is)
LAYOUTS = [
    *((path, "", "{lesson}/{who}" not in path) for path in PATHS),
    ("{lesson}/{who}.ipynb", "", False),
    ("{who}/x.ipynb", "", False),
    ("{who}.zip", f"{LESSON}.ipynb", True),
    ("{who} (1).zip", f"{LESSON}/{LESSON}.ipynb", True),
    ("{who}.zip", "x.ipynb", True),
    ("{who}.zip", f"exercises/{LESSON}/{LESSON}.ipynb", True),
    ("{who}/exercises/{lesson}/{lesson}.ipynb", "", True),
    ("{who}.zip", f"work/{LESSON} (1).ipynb", False),
    ("{who}/{lesson}.zip", f"{LESSON}.ipynb", True),
    ("{who}/work.zip", f"{LESSON}.ipynb", False),
    ("{who}/work.zip", "x.ipynb", False),
    ("{lesson}/{who}.zip", "x.ipynb", True),
    (f"{BLACKBOARD}.ipynb", "", True),
    (f"{BLACKBOARD}.zip", f"work/{LESSON}.ipynb", True),
    (f"{MOODLE}/{LESSON}.ipynb", "", True),
    (f"{MOODLE}/lesson1.zip", f"{LESSON}.ipynb", True),
    (f"{MOODLE}/lesson1.zip", "work/x.ipynb", True),
    (f"{MOODLE}{LESSON}.ipynb", "", True),
    (f"{MOODLE}work.zip", "work/x.ipynb", True),
    ("{who}_LATE_12_98_x-1.ipynb", "", True),
    ("{who}_12_98_work.zip", "work/x.ipynb", True),
    (f"{BRIGHTSPACE}/x.ipynb", "", True),
    (f"{BRIGHTSPACE}/work.zip", "work/x.ipynb", True),
]


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("path, inside, plain", LAYOUTS)
def test_whose_does_not_depend_on_how_much_is_handed_in(
    tmp_path, data, path, inside, plain, known
):
    number = "_12" if "12" in path and "Lesson 1" not in path else ""
    source = tmp_path / "handed-in"
    names = {}
    for who in ("Quinn", "Zoe"):
        place = path.format(who=who, lesson=LESSON, LESSON=LESSON.upper())
        (source / place).parent.mkdir(parents=True, exist_ok=True)
        (source / place).write_bytes(
            packed(data, inside) if place.endswith(".zip") else data
        )
        names[source / place] = who + number
    people = {name: name.replace("_", " ") for name in names.values()}
    for part in {source, *source.rglob("*")}:
        if known or plain or part == source:
            made = arrivals(part, people if known else {})
            assert {each.student for each in made} == {
                name
                for file, name in names.items()
                if file.is_relative_to(part)
            }
            # The gradebook finds a site's number in the label.
            numbers = {from_lms(each.label.split("/")) for each in made}
            assert not number or {found[1] for found in numbers} == {"12"}


def test_a_lesson_s_folder_of_several_people_s_files_is_a_class(
    tmp_path, data
):
    (tmp_path / LESSON).mkdir()
    for name in ("yan", "zoe"):
        (tmp_path / LESSON / f"{name}.ipynb").write_bytes(data)
    for source in (tmp_path, tmp_path / LESSON):
        assert {each.student for each in arrivals(source)} == {"yan", "zoe"}


def test_a_class_in_a_folder_of_a_known_name_stays_a_class(tmp_path, data):
    people = {name: name for name in ("handed-in", "yan")}
    source = tmp_path / "handed-in"
    source.mkdir()
    for name in ("yan", "zoe"):
        (source / f"{name}.ipynb").write_bytes(data)
    made = arrivals(source, people)
    assert [each.student for each in made] == ["yan", "zoe"]


def test_one_student_s_folder_reads_as_in_the_class(tmp_path, data):
    folder = tmp_path / "handed-in" / "anna"
    folder.mkdir(parents=True)
    (folder / f"{LESSON}.ipynb").write_bytes(data)
    (folder / "plot.png").write_bytes(b"\x89PNG")
    (folder / "timestamp.txt").write_text("2026-01-01")
    (folder / "empty.zip").write_bytes(packed(b""))
    people = {"anna": "anna"}
    (class_s,) = [
        each for each in arrivals(folder.parent, people) if not each.problem
    ]
    (own,) = [each for each in arrivals(folder, people) if not each.problem]
    assert own == class_s
    assert own.label == f"anna/{LESSON}.ipynb"


def test_a_time_in_a_student_s_archive_counts_for_nothing_alone_either(
    tmp_path, data
):
    with zipfile.ZipFile(tmp_path / "anna.zip", "w") as archive:
        archive.writestr(f"{LESSON}.ipynb", data)
        archive.writestr("timestamp.txt", "1999-01-01")
    (only,) = arrivals(tmp_path / "anna.zip")
    assert (only.student, only.handed_in) == ("anna", "")


@pytest.fixture
def data(notebook_of, right):
    return json.dumps(notebook_of(right)).encode()


def found(source):
    return {(each.student, each.lesson): each for each in arrivals(source)}


def test_a_tree_of_nbgrader(tmp_path, data):
    for name in ("alice", "bob"):
        path = tmp_path / name / LESSON / f"{LESSON}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
        (path.parent / "timestamp.txt").write_text("2026-01-01")
        (path.parent / ".ipynb_checkpoints").mkdir()
        (path.parent / ".ipynb_checkpoints" / "x.ipynb").write_bytes(data)
        (path.parent / "plot.png").write_bytes(b"\x89PNG")
    assert set(found(tmp_path)) == {("alice", LESSON), ("bob", LESSON)}


def test_when_it_was_handed_in_is_nbgrader_s_to_say(tmp_path, data):
    tree = tmp_path / "tree" / "alice" / LESSON
    tree.mkdir(parents=True)
    (tree / f"{LESSON}.ipynb").write_bytes(data)
    (tree / "timestamp.txt").write_text("2026-01-01\n")
    (tree / "submission_secret.txt").write_text("abc")
    own = tmp_path / "tree" / "bob.zip"
    with zipfile.ZipFile(own, "w") as archive:
        archive.writestr("x.ipynb", data)
        archive.writestr("timestamp.txt", "1999-01-01")
    alice, bob = arrivals(tmp_path / "tree")
    assert (alice.handed_in, alice.secret) == ("2026-01-01", "abc")
    assert (bob.student, bob.handed_in, bob.secret) == ("bob", "", "")
    whole = tmp_path / "whole.zip"
    with zipfile.ZipFile(whole, "w") as archive:
        for path in tree.iterdir():
            archive.write(path, f"alice/{LESSON}/{path.name}")
    (again,) = arrivals(whole)
    assert again.handed_in == "2026-01-01"


def submitted_with_nbgrader(folder, monkeypatch):
    """The secret that nbgrader's own code gives a student who submits."""
    from nbgrader.coursedir import CourseDirectory
    from nbgrader.exchange.default.submit import ExchangeSubmit

    cache = folder.parents[1] / "cache"
    (cache / folder.name).mkdir(parents=True)
    submit = ExchangeSubmit(CourseDirectory())
    for step in ("init_release", "check_filename_diff", "do_copy"):
        monkeypatch.setattr(submit, step, lambda *_: None)
    monkeypatch.setattr(submit, "set_perms", lambda *_, **__: None)
    submit.src_path = submit.inbound_path = str(folder.parent)
    submit.assignment_filename = folder.name
    submit.cache_path = str(cache)
    submit.timestamp = "2026-10-05 11:30:00.123456 UTC"
    submit.add_random_string = False
    submit.copy_files()
    return (cache / folder.name / "submission_secret.txt").read_text()


def test_the_secret_is_whole_that_nbgrader_finds_feedback_by(
    tmp_path, data, monkeypatch
):
    folder = tmp_path / "alice" / LESSON
    folder.mkdir(parents=True)
    (folder / f"{LESSON}.ipynb").write_bytes(data)
    secret = submitted_with_nbgrader(folder, monkeypatch)
    assert len(secret) > 100
    (only,) = arrivals(tmp_path / "alice")
    assert only.secret == secret
    assert only.handed_in == "2026-10-05 11:30:00.123456 UTC"


def test_a_note_that_nbgrader_cannot_have_written_counts_for_nothing(
    tmp_path, data
):
    (tmp_path / "x.ipynb").write_bytes(data)
    (tmp_path / "submission_secret.txt").write_text("a" * 10**6)
    (tmp_path / "timestamp.txt").write_bytes(b"\xff\xfe")
    (only,) = arrivals(tmp_path)
    assert (only.handed_in, only.secret) == ("", "")


def test_a_zip_in_a_zip(tmp_path, data):
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("work/x.ipynb", data)
    path = tmp_path / "moodle.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("Ann Lee_12_assignsubmission_file_/x.ipynb", data)
        archive.writestr(
            "Bo Ek_13_assignsubmission_file_/x.zip", inner.getvalue()
        )
        archive.writestr("../../evil_14_assignsubmission_file_/x.ipynb", data)
        archive.writestr("__MACOSX/._x.ipynb", b"junk")
    assert set(found(path)) == {
        ("Ann_Lee_12", LESSON),
        ("Bo_Ek_13", LESSON),
        ("evil_14", LESSON),
    }


def packed(data, name="work/x.ipynb"):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, data)
    return file.getvalue()


@pytest.mark.parametrize(
    "names, students",
    [
        (
            [
                "12-77 - Ann Lee - Oct 5, 2026 1130 AM/x.ipynb",
                "13-77 - 4711 Bo Ek - 05 October 2026 612 PM/x.zip",
                "14-77 - Ann Lee - 5 oktober 2026 1812/x.ipynb",
                "index.html",
            ],
            {"Ann_Lee_12", "4711_Bo_Ek_13", "Ann_Lee_14"},
        ),
        (
            [
                "Lesson 1_alee_attempt_2026-10-05-11-30-00.txt",
                "Lesson 1_alee_attempt_2026-10-05-11-30-00_x.ipynb",
                "Lesson 1_bo.ek_poging_2026-10-05-11-30-01_work.zip",
                "Lesson 1_bo.ek_poging_2026-10-05-11-30-01.txt",
            ],
            {"alee", "bo.ek"},
        ),
        (
            ["doejane_1234_98765_x.ipynb", "roejo_LATE_1235_98766_work.zip"],
            {"doejane_1234", "roejo_1235"},
        ),
        (
            [
                "Ann Lee_12_assignsubmission_file_x.ipynb",
                "Ann Lee_12_assignsubmission_onlinetext_onlinetext.html",
                "Bo Ek_13_assignsubmission_file_work.zip",
            ],
            {"Ann_Lee_12", "Bo_Ek_13"},
        ),
    ],
    ids=["Brightspace", "Blackboard", "Canvas", "Moodle without folders"],
)
@pytest.mark.parametrize("unpacked", [False, True])
def test_what_a_site_packs(tmp_path, data, names, students, unpacked):
    path = tmp_path / "class.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            content = {"ipynb": data, "zip": packed(data)}
            archive.writestr(name, content.get(name.split(".")[-1], "<p>"))
    if unpacked:
        zipfile.ZipFile(path).extractall(tmp_path / "class")
        path = tmp_path / "class"
    assert set(found(path)) == {(name, LESSON) for name in students}


def test_a_site_s_note_alone_is_told(tmp_path, data):
    path = tmp_path / "class.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("L1_alee_attempt_2026-10-05-11-30-00.txt", "Sorry!")
        archive.writestr("index.html", "<p>")
        archive.writestr("bob/x.ipynb", data)
    made = found(path)
    assert ("bob", LESSON) in made
    assert made["alee", ""].problem
    assert len(made) == 3


@pytest.mark.parametrize("between", ["/", ""])
def test_an_online_text_is_a_note_beside_a_notebook_only(
    tmp_path, data, between
):
    text = f"assignsubmission_onlinetext_{between}onlinetext.html"
    path = tmp_path / "class.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            f"Ann Lee_12_assignsubmission_file_{between}x.ipynb", data
        )
        archive.writestr(f"Ann Lee_12_{text}", "<p>Here it is!")
        archive.writestr(f"Bo Ek_13_{text}", "<p>My dog ate it.")
    zipfile.ZipFile(path).extractall(tmp_path / "class" / "week1")
    for source in (path, tmp_path / "class", tmp_path / "class" / "week1"):
        ann, bo = arrivals(source)
        assert (ann.student, ann.problem) == ("Ann_Lee_12", "")
        assert f"Ann Lee_12_{text}" in ann.choices[0]
        assert bo.student == "Bo_Ek_13" and bo.problem


def test_one_zip_a_student(tmp_path, data):
    for student, name in (
        ("alice", f"{LESSON}.ipynb"),
        ("bob", f"work/{LESSON} (1).ipynb"),
        ("cleo", "Untitled.ipynb"),
    ):
        with zipfile.ZipFile(tmp_path / f"{student}.zip", "w") as archive:
            archive.writestr(name, data)
            archive.writestr("notes.txt", "hello")
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("dora/x.ipynb", data)
        archive.writestr("emil/x.ipynb", data)
    assert set(found(tmp_path)) == {
        (student, LESSON)
        for student in ("alice", "bob", "cleo", "dora", "emil")
    }


@pytest.mark.parametrize("folder", ["exercises/", "my work/", ""])
def test_one_zip_of_several_notebooks_a_student(tmp_path, data, folder):
    for student in ("alice", "bob"):
        with zipfile.ZipFile(tmp_path / f"{student}.zip", "w") as archive:
            archive.writestr(f"{folder}{LESSON}/{LESSON}.ipynb", data)
            archive.writestr(f"{folder}{LESSON}/{LESSON} (1).ipynb", data)
            archive.writestr(f"{folder}data/x.csv", "1")
    assert set(found(tmp_path)) == {("alice", LESSON), ("bob", LESSON)}


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_a_tar(tmp_path, data, mode):
    path = tmp_path / {"w": "a.tar", "w:gz": "a.tgz", "w:xz": "a.tar.xz"}[mode]
    with tarfile.open(path, mode) as archive:
        info = tarfile.TarInfo("zoe/x.ipynb")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
        link = tarfile.TarInfo("yan/x.ipynb")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    made = found(path)
    assert ("zoe", LESSON) in made
    assert "link" in made["yan", ""].problem


def test_a_single_file_and_its_lesson_by_content(tmp_path, data):
    stripped = json.loads(data)
    stripped["metadata"] = {}
    for cell in stripped["cells"]:
        cell["metadata"] = {}
    path = tmp_path / "Untitled7 (3).ipynb"
    path.write_text(json.dumps(stripped))
    (only,) = arrivals(path)
    assert (only.student, only.lesson) == ("Untitled7", LESSON)


def test_the_most_complete_of_several(tmp_path, data, notebook_of):
    folder = tmp_path / "alice" / LESSON
    folder.mkdir(parents=True)
    (folder / f"{LESSON}-Copy1.ipynb").write_bytes(data)
    (folder / f"{LESSON}.ipynb").write_text(json.dumps(notebook_of()))
    os.utime(folder / f"{LESSON}-Copy1.ipynb", (1, 1))
    (only,) = arrivals(tmp_path)
    assert only.label.endswith("-Copy1.ipynb")
    assert f"{LESSON}.ipynb" in only.choices[0]


def zipped(path, data, times):
    """A zip archive of copies of a notebook, each with a day of October."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, day in times.items():
            info = zipfile.ZipInfo(name, (2026, 10, day, 11, 30, 0))
            archive.writestr(info, data)
    return path


@pytest.mark.parametrize("newest", range(2))
def test_of_equally_many_answers_the_newest_in_a_zip_is_graded(
    tmp_path, data, newest
):
    names = [f"alice/{LESSON}.ipynb", f"alice/{LESSON} (1).ipynb"]
    times = dict.fromkeys(names, 1) | {names[newest]: 5}
    (only,) = arrivals(zipped(tmp_path / "class.zip", data, times))
    assert only.label == names[newest]
    assert names[1 - newest] in only.choices[0]


def test_a_month_that_there_is_not_in_a_zip_stops_nothing(tmp_path, data):
    path = zipped(tmp_path / "class.zip", data, {"alice/x.ipynb": 5})
    for number in (0, 0xFFFF):
        broken = path.read_bytes()
        at = broken.rindex(b"PK\x01\x02") + 12  # time and day of a member
        path.write_bytes(
            broken[:at] + number.to_bytes(2, "little") * 2 + broken[at + 4 :]
        )
        (only,) = arrivals(path)
        assert not only.problem


@pytest.mark.parametrize(
    "older, newer",
    [
        ("Sep 30, 2026 1130 AM", "Oct 5, 2026 1130 AM"),
        ("Dec 30, 2025 1130 PM", "Jan 5, 2026 1130 AM"),
        ("Oct 5, 2026 1130 AM", "Oct 5, 2026 1205 PM"),
        ("Oct 5, 2026 1259 AM", "Oct 5, 2026 130 AM"),
        ("30 September 2026 612 PM", "05 October 2026 612 PM"),
        ("30 septembre 2026 1812", "5 octobre 2026 1812"),
        ("5 mai 2026 1812", "5 août 2026 1812"),
        ("9 de outubro de 2026 1812", "10 de outubro de 2026 1812"),
    ],
)
def test_of_brightspace_s_folders_the_newest_by_name_is_graded(
    tmp_path, data, older, newer
):
    for date, when in ((older, 10**9), (newer, 1)):
        path = tmp_path / f"12-77 - Ann Lee - {date}" / "x.ipynb"
        path.parent.mkdir()
        path.write_bytes(data)
        os.utime(path, (when, when))  # of unpacking, say
    (only,) = arrivals(tmp_path)
    assert newer in only.label


def test_of_blackboard_s_files_the_newest_by_name_is_graded(tmp_path, data):
    for date, when in (("2026-10-05", 1), ("2026-09-30", 10**9)):
        path = tmp_path / f"L1_alee_attempt_{date}-11-30-00_x.ipynb"
        path.write_bytes(data)
        os.utime(path, (when, when))
    (only,) = arrivals(tmp_path)
    assert "2026-10-05" in only.label


def test_a_date_that_cannot_be_read_leaves_the_file_s_own(tmp_path, data):
    for date, when in (("5 lokakuuta 2026", 2), ("Oct 77, 2026", 1)):
        path = tmp_path / f"12-77 - Ann Lee - {date} 1130" / "x.ipynb"
        path.parent.mkdir()
        path.write_bytes(data)
        os.utime(path, (when, when))
    (only,) = arrivals(tmp_path)
    assert "lokakuuta" in only.label


BACKUP = f".ipynb_checkpoints/{LESSON}-checkpoint.ipynb"


@pytest.mark.parametrize("kind", ["folder", "zip"])
@pytest.mark.parametrize(
    "hidden", [BACKUP, f"{LESSON}/{BACKUP}", f"__MACOSX/._{LESSON}.ipynb"]
)
def test_a_backup_copy_alone_is_told_once(tmp_path, data, hidden, kind):
    source = tmp_path / "handed-in"
    for name in (f"anna/{hidden}", "bob/x.ipynb", f"bob/{BACKUP}"):
        (source / name).parent.mkdir(parents=True)
        (source / name).write_bytes(data)
    anna_s = source / "anna"
    if kind == "zip":
        source = shutil.make_archive(tmp_path / "all", "zip", source)
        anna_s = shutil.make_archive(anna_s, "zip", anna_s)
    anna, bob = arrivals(source)
    assert (anna.student, bob.student) == ("anna", "bob")
    assert "hand in the notebook" in anna.problem and not bob.problem
    (alone,) = arrivals(anna_s)
    assert "hand in the notebook" in alone.problem
    assert kind == "zip" or alone.student == "anna"


def test_a_backup_copy_that_was_handed_in_itself_is_its_student_s(
    tmp_path, data
):
    path = tmp_path / "anna" / f"{LESSON}-checkpoint.ipynb"
    path.parent.mkdir()
    path.write_bytes(data)
    for source in (tmp_path, path.parent, path):
        (only,) = arrivals(source)
        assert (only.student, only.problem) == ("anna", "")


def test_a_script_beside_a_notebook_is_told_with_it(tmp_path, data):
    (tmp_path / "anna").mkdir()
    (tmp_path / "anna" / f"{LESSON}.ipynb").write_bytes(data)
    (tmp_path / "anna" / "helpers.py").write_text("def f(): pass")
    (tmp_path / "bob").mkdir()
    (tmp_path / "bob" / f"{LESSON}.ipynb").write_bytes(data)
    for source in (tmp_path, tmp_path / "anna"):
        anna, *others = arrivals(source)
        assert anna.student == "anna" and "helpers.py" in anna.choices[0]
        assert not any(each.choices for each in others)


def test_who_it_is_and_what_was_not_used_are_both_told(tmp_path, data):
    for name in ("Ana López", "Ana Lopez"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.ipynb").write_bytes(data)
        (tmp_path / name / "helpers.py").write_text("def f(): pass")
    for each in arrivals(tmp_path):
        alike, unused = each.choices
        assert "look alike" in alike and "helpers.py" in unused


def test_a_script_among_others_notebooks_is_handed_in(tmp_path, data, right):
    (tmp_path / "anna.ipynb").write_bytes(data)
    (tmp_path / "bob.py").write_text("\n\n".join(right.values()))
    anna, bob = arrivals(tmp_path)
    assert (bob.student, bob.lesson, bob.problem) == ("bob", LESSON, "")
    assert not anna.choices


@pytest.mark.parametrize(
    "path",
    ["anna/ch2_multi_head.ipynb", "anna/ch2_multi_head/x (1).ipynb"],
)
def test_a_notebook_under_another_lesson_s_name_is_told(tmp_path, data, path):
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_bytes(data)
    (only,) = arrivals(tmp_path)
    assert only.lesson == LESSON
    (told,) = only.choices
    assert "handed in as ch2_multi_head" in told and LESSON in told
    for name in (f"{LESSON} (1)", f"ch2_multi_head and {LESSON}"):
        (only,) = tmp_path.rglob("*.ipynb")
        only.rename(tmp_path / "anna" / f"{name}.ipynb")
        (only,) = arrivals(tmp_path)
        assert not only.choices


def test_two_members_of_one_name_that_cannot_be_read_are_told(tmp_path):
    path = tmp_path / "class.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("anna/x.ipynb", b"")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("anna/x.ipynb", b"")
    (only,) = arrivals(path)
    assert "empty" in only.problem


def test_nothing_is_passed_over_silently(tmp_path):
    for name, content in [
        ("a/report.pdf", b"%PDF-1.4"),
        ("b/x.ipynb", b""),
        ("c/notes.txt", b"hello"),
        ("d/x.zip", b"PK junk"),
        ("e/other.ipynb", b'{"cells": []}'),
    ]:
        path = tmp_path / name
        path.parent.mkdir()
        path.write_bytes(content)
    os.symlink("/etc/passwd", tmp_path / "b" / "link.ipynb")
    made = arrivals(tmp_path)
    assert sorted(each.label for each in made) == [
        "a/report.pdf",
        "b/link.ipynb",
        "b/x.ipynb",
        "c/notes.txt",
        "d/x.zip",
        "e/other.ipynb",
    ]
    assert all(each.problem for each in made)
    assert {each.student for each in made} == set("abcde")


def test_a_bomb_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MAX_TOTAL", 2**20)
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("s/x.ipynb", b"\0" * 2**21)
    (only,) = arrivals(path)
    assert "absurd" in only.problem


def damaged(data, name="x.ipynb"):
    """A zip archive whose one member breaks only when it is unpacked."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, data)
    made = bytearray(packed.getvalue())
    made[len(made) // 2] ^= 255
    return bytes(made)


@pytest.mark.parametrize("kind", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_damaged_member_costs_nobody_else_the_grade(tmp_path, data, kind):
    path = tmp_path / "class.zip"
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name in ("anna", "bert", "cleo"):
            archive.writestr(f"{name}/x.ipynb", data)
    with zipfile.ZipFile(path) as archive:
        at = archive.getinfo("bert/x.ipynb").header_offset + 200
    broken = bytearray(path.read_bytes())
    broken[at : at + 50] = bytes(50)
    path.write_bytes(broken)
    made = found(path)
    assert set(made) == {("anna", LESSON), ("bert", ""), ("cleo", LESSON)}
    assert "again" in made["bert", ""].problem


def test_a_damaged_archive_in_an_archive_is_one_problem(tmp_path, data):
    path = tmp_path / "class.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("anna/x.ipynb", data)
        archive.writestr("bert.zip", damaged(data))
        archive.writestr("cleo.zip", damaged(damaged(data), "y.zip"))
    made = found(path)
    assert made.keys() == {("anna", LESSON), ("bert", ""), ("cleo", "")}
    assert "again" in made["bert", ""].problem
    assert "again" in made["cleo", ""].problem


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tgz", "a.tar.xz"])
def test_any_damage_to_an_archive_gives_rows(tmp_path, name):
    path = tmp_path / name
    text = json.dumps({"cells": [], "more": list(range(300))}).encode()
    if name == "a.zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("s/ü.ipynb", text)
    else:
        kind = {"a.tar": "w", "a.tgz": "w:gz", "a.tar.xz": "w:xz"}[name]
        with tarfile.open(path, kind) as archive:
            info = tarfile.TarInfo("s/ü.ipynb")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text))
    whole = path.read_bytes()
    rng = random.Random(0)
    for _ in range(300):
        broken = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        path.write_bytes(broken)
        assert all(each.problem for each in arrivals(path))


def test_a_link_or_a_locked_file_is_told_whatever_its_name(tmp_path, data):
    path = tmp_path / "class.tar"
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("x.ipynb", data)
    with tarfile.open(path, "w") as archive:
        link = tarfile.TarInfo("yan.zip")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        info = tarfile.TarInfo("zoe.zip")
        info.size = len(packed.getvalue())
        archive.addfile(info, io.BytesIO(packed.getvalue()))
    made = found(path)
    assert set(made) == {("yan", ""), ("zoe", LESSON)}
    assert "link" in made["yan", ""].problem


def test_an_archive_with_nothing_in_it_is_told(tmp_path):
    zipfile.ZipFile(tmp_path / "anna.zip", "w").close()
    tarfile.open(tmp_path / "bert.tar", "w").close()
    made = found(tmp_path)
    assert set(made) == {("anna", ""), ("bert", "")}
    assert all("nothing in it" in each.problem for each in made.values())


def test_a_packed_archive_that_is_too_large_is_not_read(
    tmp_path, data, monkeypatch
):
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("x.ipynb", data)
    monkeypatch.setattr(archives, "MAX_FILE", len(inner.getvalue()) - 1)
    path = tmp_path / "class.tar"
    with tarfile.open(path, "w") as archive:
        info = tarfile.TarInfo("zoe.zip")
        info.size = len(inner.getvalue())
        archive.addfile(info, io.BytesIO(inner.getvalue()))
    (only,) = arrivals(path)
    assert "too large" in only.problem


def test_a_tar_with_absurdly_much_in_it_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MAX_TOTAL", 1000)
    path = tmp_path / "bomb.tar"
    with tarfile.open(path, "w") as archive:
        for number in range(3):
            info = tarfile.TarInfo(f"s/{number}.ipynb")
            info.size = 400
            archive.addfile(info, io.BytesIO(bytes(400)))
    (only,) = arrivals(path)
    assert "absurd" in only.problem


@pytest.mark.parametrize("packed", [False, True])
def test_a_name_that_is_not_utf_8_is_read_and_can_be_written(
    tmp_path, data, packed
):
    name = os.fsdecode("Müller.ipynb".encode("latin-1"))
    try:
        (tmp_path / name).write_bytes(data)
    except OSError:
        pytest.skip("this file system knows only names in UTF-8")
    if packed:
        with tarfile.open(tmp_path / "a.tar", "w") as archive:
            archive.add(tmp_path / name, f"s/{name}")
        (only,) = arrivals(tmp_path / "a.tar")
        assert only.student == "s"
    else:
        (only,) = arrivals(tmp_path)
        assert only.student == "Muller"
    assert only.label.encode().decode().endswith("Müller.ipynb")


def test_a_lone_half_of_a_character_in_a_notebook_can_be_written(
    tmp_path, notebook_of, right
):
    made = notebook_of(right)
    made["metadata"]["course"]["version"] = "\udcff"
    made["cells"].append(
        {"cell_type": "markdown", "metadata": {}, "source": "a\ud800b"}
    )
    (tmp_path / "anna.ipynb").write_text(json.dumps(made))
    (only,) = arrivals(tmp_path)
    for cell in only.submitted.cells:
        cell.source.encode()
    only.submitted.version.encode()


ALIKE = [
    ("Ana López", "Ana Lopez"),
    ("Anna Müller", "Anna_Muller"),
    ("?", "!"),
    ("x" * 90 + "y", "x" * 90 + "z"),
]


@pytest.mark.parametrize("names", ALIKE)
def test_two_people_whose_names_look_alike_stay_two(tmp_path, data, names):
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.ipynb").write_bytes(data)
    one, two = arrivals(tmp_path)
    assert one.student != two.student
    assert not one.problem and not two.problem
    for each in (one, two):
        assert each.label.split("/")[0] in names
        assert all(name in each.choices[0] for name in names)
    for pattern in (r"[^\w.@-]", r"_\d+$"):
        assert not re.search(pattern, one.student + two.student)


def test_who_is_who_does_not_depend_on_who_came_first(tmp_path, data):
    names = "Ana López", "Ana Lopez", "Aná Lopez"
    seen = set()
    for number, order in enumerate(itertools.permutations(names)):
        path = tmp_path / f"{number}.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for name in order:
                archive.writestr(f"{name}/x.ipynb", data)
        seen.add(
            frozenset((each.student, each.label) for each in arrivals(path))
        )
    assert len(seen) == 1
    (students,) = seen
    assert len(dict(students)) == 3
    # Who is called just like that stays so, alone or not.
    assert dict(students)["Ana_Lopez"] == "Ana Lopez/x.ipynb"


def handed_in_as(folder, data, *names):
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "x.ipynb").write_bytes(data)
    return folder


@pytest.mark.parametrize("first", range(3))
def test_a_student_stays_the_same_whoever_comes_later(tmp_path, data, first):
    names = ["Ana López", "Ana Lopez", "Aná Lopez"]
    known, all_of_them = {}, tmp_path / "all"
    handed_in_as(all_of_them, data, *names)
    batches = [
        handed_in_as(tmp_path / name, data, name)
        for name in [*names[first:], *names[:first]]
    ]
    for batch in [*batches, *batches]:
        (only,) = arrivals(batch, known)
        assert known.setdefault(only.student, only.name) == only.name
    assert sorted(known.values()) == sorted(names)
    later = arrivals(all_of_them, known)
    assert {each.student: each.name for each in later} == known


def test_two_students_who_were_graded_together_stay_so_alone(tmp_path, data):
    names = ["Ana López", "Aná Lopez"]
    together = arrivals(handed_in_as(tmp_path / "both", data, *names))
    known = {each.student: each.name for each in together}
    for name in names:
        (only,) = arrivals(handed_in_as(tmp_path / name, data, name), known)
        assert known[only.student] == name


def test_one_name_in_two_forms_of_unicode_stays_one(tmp_path, data):
    path = tmp_path / "class.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for form in ("NFC", "NFD"):
            name = unicodedata.normalize(form, "Ana López")
            archive.writestr(f"{name}/{form}.ipynb", data)
    (only,) = arrivals(path)
    assert only.student == "Ana_Lopez"


def test_a_name_with_spaces_or_what_a_browser_made_of_them_is_one(
    tmp_path, data
):
    for name in ("Ana Lopez", "Ana_Lopez", "Ana+Lopez"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.ipynb").write_bytes(data)
    (only,) = arrivals(tmp_path)
    assert only.student == "Ana_Lopez"


@pytest.mark.parametrize("packed", [False, True])
def test_archives_of_one_name_are_named_after_their_folders(
    tmp_path, data, packed
):
    work = io.BytesIO()
    with zipfile.ZipFile(work, "w") as archive:
        archive.writestr("x.ipynb", data)
    for name in ("yan", "zoe"):
        (tmp_path / "class" / name).mkdir(parents=True)
        (tmp_path / "class" / name / "work.zip").write_bytes(work.getvalue())
    source = tmp_path / "class"
    if packed:
        source = shutil.make_archive(tmp_path / "all", "zip", source)
    assert [each.student for each in arrivals(source)] == ["yan", "zoe"]


@pytest.mark.parametrize("folder", ["week1", "ch1_self_attention"])
def test_archives_side_by_side_are_named_after_themselves(
    tmp_path, data, folder
):
    names = ("yan", "zoe") if folder == "week1" else ("zoe",)
    for place in (folder, "ch2_multi_head"):
        (tmp_path / place).mkdir()
        for name in names:
            path = tmp_path / place / f"{name}.zip"
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("x.ipynb", data)
    assert {each.student for each in arrivals(tmp_path)} == set(names)


@pytest.mark.parametrize("mark", "=+-@")
def test_no_identifier_is_a_spreadsheets_formula(mark):
    assert identifier(f"{mark}SUM(1,1)") == "SUM_1_1"
    assert identifier("ann@example.org") == "ann@example.org"


@pytest.mark.parametrize(
    "names, known, due",
    [
        (["anna/hw", "bob/hw"], {}, {"anna", "bob"}),
        (["anna/hw", "bob/HW", "ada/hw"], {}, {"anna", "bob", "ada"}),
        (["week1/zoe", "week2/zoe"], {}, {"zoe"}),
        (["a/zoe", "b/zoe"], {"zoe": "zoe"}, {"zoe"}),
        (["section a/zoe", "section b/yan"], {}, {"zoe", "yan"}),
        (["section a/李小龍", "section b/王芳"], {}, {"李小龍", "王芳"}),
    ],
)
def test_a_folder_that_all_have_is_nobodys_name(
    tmp_path, data, names, known, due
):
    made = arrivals(handed_in_as(tmp_path, data, *names), known)
    assert {each.student for each in made} == due


def test_a_missing_path():
    with pytest.raises(FileNotFoundError):
        arrivals("/no/such/folder")
