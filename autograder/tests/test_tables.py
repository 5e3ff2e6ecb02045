"""Tables about the course say what the notebooks say, and can be led to."""

import re
import sys

import pytest

from autograder import course
from autograder.course import ROOT, stamp
from autograder.exercise import lessons

sys.path.append(str(ROOT / "book"))  # as in the kernel that runs a page

from figures import tables  # noqa: E402 - needs that path


@pytest.mark.parametrize("lesson", lessons())
def test_a_link_to_an_exercise_leads_to_its_row(lesson):
    shown = tables.exercises(lesson).data
    for each in stamp(lesson)["exercises"]:
        link = tables.exercise_link(each["name"])
        page, anchor, number = re.fullmatch(
            r'<a href="(\w+)\.html#([\w-]+)">([\w.]+)</a>', link
        ).groups()
        assert page == lesson
        assert f'<span id="{anchor}"></span>{number} ' in shown


def test_an_exercise_of_no_lesson_has_no_link():
    assert not tables.is_exercise("left_out")
    with pytest.raises(LookupError):
        tables.exercise_link("left_out")


@pytest.fixture
def settings(monkeypatch):
    """What `_config.yml` says, to be changed."""
    made = {"repository": {"url": "", "branch": "main"}, "launch_buttons": {}}
    monkeypatch.setattr(course, "settings", lambda: made)
    return made


def test_a_table_leads_to_its_notebook_in_colab(settings):
    settings["repository"] |= {
        "url": "https://github.com/people/course",
        "branch": "term",
    }
    assert "Colab" not in tables.exercises("ch1_self_attention").data
    settings["launch_buttons"]["colab_url"] = "https://colab.example.org"
    shown = tables.exercises("ch1_self_attention").data
    assert (
        "(https://colab.example.org/github/people/course/blob/term/exercises/"
        "ch1_self_attention/ch1_self_attention.ipynb)"
    ) in shown.splitlines()[-1]


def test_what_colab_cannot_open_is_not_linked(settings):
    settings["launch_buttons"]["colab_url"] = "https://colab.example.org"
    for url in ("", "https://gitlab.com/people/course"):
        settings["repository"]["url"] = url
        assert "Colab" not in tables.exercises("ch1_self_attention").data
