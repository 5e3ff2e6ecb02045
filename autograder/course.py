"""What the course's files say about it: its address, lessons, exercises."""

import functools
import json
import pathlib

ROOT = pathlib.Path(__file__).parent.parent
CHECK = "check-"  # how the grade id of a check cell begins


class SourceError(ValueError):
    """An authored file breaks a rule; the text says where and what to do."""


def released_path(lesson):
    """The notebook that learners of a lesson open."""
    return ROOT / "exercises" / lesson / f"{lesson}.ipynb"


def check_id(name):
    """nbgrader's grade id of the cell that checks an exercise."""
    return CHECK + name


def checked_by(grade_id):
    """The exercise that the cell with this grade id checks, or None."""
    if not grade_id.startswith(CHECK):
        return None
    return grade_id.removeprefix(CHECK)


@functools.cache
def stamp(lesson):
    """What a released notebook says of itself.

    returns: {"lesson", "version", "title", "exercises": [{"name", "title",
        "level", "minutes", "points"}, …]}
    """
    text = released_path(lesson).read_text(encoding="utf-8")
    return json.loads(text)["metadata"]["course"]


@functools.cache
def settings():
    """What `_config.yml` says."""
    import yaml  # not among what a learner's check needs

    text = (ROOT / "_config.yml").read_text(encoding="utf-8")
    return yaml.safe_load(text)


def repository():
    """The repository's address in `_config.yml`, or "" while there is none."""
    return settings().get("repository", {}).get("url") or ""


def source_address(path):
    """Where the repository shows a file or folder, or "" without one."""
    branch = settings().get("repository", {}).get("branch", "main")
    return repository() and f"{repository()}/blob/{branch}/{path}"


def colab_address(path):
    """Where Colab opens a notebook, or "" while the settings do not say."""
    colab = settings().get("launch_buttons", {}).get("colab_url")
    github = "https://github.com/"
    if not colab or not repository().startswith(github):
        return ""
    place = source_address(path).removeprefix(github)
    return f"{colab}/github/{place}"
