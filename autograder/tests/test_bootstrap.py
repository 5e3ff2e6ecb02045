"""Set-up notices what is done, mends what is not, and says what it lacks."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from autograder import bootstrap

SCRIPT = pathlib.Path(bootstrap.__file__)


@pytest.fixture
def course(tmp_path):
    """A folder with a copy of the set-up, and nothing to install."""
    (tmp_path / "autograder").mkdir()
    shutil.copy(SCRIPT, tmp_path / "autograder")
    (tmp_path / "requirements.txt").write_text("")
    (tmp_path / "pyproject.toml").write_text("")
    return tmp_path


def set_up(course, **environment):
    """Run the set-up as make does, less -I, which forbids PYTHONPATH."""
    return subprocess.run(
        [sys.executable, course / "autograder" / "bootstrap.py"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def stamp(course):
    return course / ".venv" / "setup.stamp"


def one_sentence(text):
    """Whether a message is one line that ends with its only full stop."""
    text = text.strip()
    return "\n" not in text and text.endswith(".") and ". " not in text


@pytest.mark.slow
def test_a_second_set_up_says_and_does_nothing(course):
    first = set_up(course)
    assert first.returncode == 0, first.stderr
    assert "Installing" in first.stdout
    assert (course / ".venv" / "setup.log").exists()
    before = stamp(course).stat().st_mtime_ns
    second = set_up(course)
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    assert stamp(course).stat().st_mtime_ns == before

    # A changed file means another set-up, in the same .venv.
    (course / ".venv" / "kept").touch()
    (course / "pyproject.toml").write_text("# changed\n")
    third = set_up(course)
    assert "Installing" in third.stdout and "Making" not in third.stdout
    assert (course / ".venv" / "kept").exists()

    # A .venv whose Python is gone is made anew.
    python = pathlib.Path(bootstrap.python_of(str(course / ".venv")))
    python.unlink()
    fourth = set_up(course)
    assert fourth.returncode == 0, fourth.stderr
    assert "Making" in fourth.stdout
    assert python.exists() and not (course / ".venv" / "kept").exists()


@pytest.mark.slow
def test_an_interrupted_set_up_is_begun_anew(course):
    venv = course / ".venv"
    venv.mkdir()
    (venv / "setup.unfinished").touch()
    (venv / "half").touch()
    again = set_up(course)
    assert again.returncode == 0, again.stderr
    assert stamp(course).exists()
    assert not (venv / "half").exists()
    assert not (venv / "setup.unfinished").exists()


@pytest.mark.slow
def test_without_a_network_one_sentence_says_so(course):
    # What pip asks for first is what it builds the course's package with.
    (course / "requirements.txt").write_text("-e .\n")
    (course / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools>=64"]\n'
    )
    offline = {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",  # nobody answers
        "PIP_EXTRA_INDEX_URL": "",
        "PIP_FIND_LINKS": "",
        "PIP_RETRIES": "1",
    }
    result = set_up(course, **offline)
    assert result.returncode == 1
    assert "cannot reach the package index" in result.stderr
    assert one_sentence(result.stderr)
    assert not stamp(course).exists()

    # A package that does not exist is another matter than no network.
    (course / "requirements.txt").write_text("no-such-thing==1.0\n")
    result = set_up(course, **offline, PIP_NO_INDEX="1")
    assert result.returncode == 1
    assert "finds no no-such-thing==1.0 for Python" in result.stderr
    assert one_sentence(result.stderr)

    # Nothing was half installed, so what is there serves the next try.
    (course / "requirements.txt").write_text("")
    result = set_up(course)
    assert result.returncode == 0, result.stderr
    assert "Making" not in result.stdout


def test_a_missing_venv_module_names_the_package(course):
    broken = course / "broken"
    broken.mkdir()
    (broken / "ensurepip.py").write_text("raise ImportError\n")
    result = set_up(course, PYTHONPATH=str(broken))
    assert result.returncode == 1
    version = "{}.{}".format(*sys.version_info)
    assert f"apt install python{version}-venv" in result.stderr
    assert one_sentence(result.stderr)
    assert not (course / ".venv").exists()


def test_an_old_python_is_named_with_the_one_to_use(course, monkeypatch):
    monkeypatch.setattr(bootstrap.sys, "version_info", (3, 8, 18))
    monkeypatch.setattr(bootstrap, "runs", lambda name: name == "python3.12")
    sentence = bootstrap.main(str(course))
    assert "needs Python 3.11 or newer" in sentence
    assert f"{sys.executable} is 3.8.18" in sentence
    assert "`make PYTHON=python3.12 start`" in sentence
    assert one_sentence(sentence.replace("3.8.18", "3"))
    monkeypatch.setattr(bootstrap, "runs", lambda name: False)
    assert "install a newer one" in bootstrap.main(str(course))
    assert not (course / ".venv").exists()


def test_pip_errors_become_one_sentence():
    full = "12:00 ERROR: Could not install: [Errno 28] No space left\n"
    assert "disk is full" in bootstrap.explain(full)
    other = "12:00 ERROR: Cannot do it.\n12:00 ERROR: [rich] at length\n"
    assert bootstrap.explain(other).startswith("Pip failed (Cannot do it):")
    assert bootstrap.explain("").startswith("Pip failed (for no reason")


def test_old_pythons_can_read_the_script():
    import ast

    ast.parse(SCRIPT.read_text(), feature_version=(3, 6))
