"""Whose file, and which lesson, from what LMSs and people leave."""

import io
import json
import os
import tarfile
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autograder.grading import intake
from autograder.grading.intake import arrivals, whose

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
    assert whose(tuple(path.split("/")), [LESSON]) == student


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
    ],
)
def test_whose_is_what_was_named_alone(above, path, student):
    assert (
        whose(
            tuple(path.split("/")),
            [LESSON],
            above.split("/"),
            single="/" not in path,
        )
        == student
    )


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
    monkeypatch.setattr(intake, "MAX_TOTAL", 2**20)
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("s/x.ipynb", b"\0" * 2**21)
    (only,) = arrivals(path)
    assert "absurd" in only.problem


def test_a_missing_path():
    with pytest.raises(FileNotFoundError):
        arrivals("/no/such/folder")
