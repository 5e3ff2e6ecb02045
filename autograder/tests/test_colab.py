"""Every notebook opens on Colab from one setting and runs from its file.

`repository.url` in _config.yml is set to a copy of this working tree as a
local git repository, the notebooks are built as `make exercises` builds them,
and each is run alone in an empty folder by `like_colab.py`.
"""

import ast
import copy
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import autograder
from autograder import build, course, pages
from autograder.course import ROOT
from autograder.exercise import exercises, lessons

LESSONS = [each for each in lessons() if build.lesson_path(each).exists()]
CHAPTERS = [
    path.stem
    for path in sorted((ROOT / "book").glob("*.md"))
    if build.is_chapter(path)
]
WHOLE = "ch1_self_attention"  # the chapter that is run to its end
SOLVED = 2  # exercises of a notebook
SHIPPED = ["torch", "numpy", "matplotlib", "ipython", "pyyaml"]
# What IPython 7.34, Colab's, has of what notebooks and figures import.
IPYTHON_7 = {"HTML", "SVG", "Markdown", "Image", "display"}


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A local git repository with this working tree, tagged as released."""
    git = tmp_path_factory.mktemp("repository") / "course.git"

    def run(*words):
        subprocess.run(
            ["git", f"--git-dir={git}", f"--work-tree={ROOT}", *words],
            check=True,
            capture_output=True,
            cwd=ROOT,
        )

    run("init", "--quiet")
    run("add", "--all")
    who = ["-c", "user.name=course", "-c", "user.email=course@example.org"]
    run(*who, "commit", "--quiet", "--no-verify", "-m", "working tree")
    run("tag", f"v{autograder.__version__}")
    return git.as_uri()


@pytest.fixture(scope="module")
def made(address, tmp_path_factory):
    """{("exercises" or "book", stem): notebook}, built with the setting."""
    root = tmp_path_factory.mktemp("settings")
    text = (ROOT / "_config.yml").read_text(encoding="utf-8")
    settings = yaml.safe_load(text)
    settings["repository"]["url"] = address
    (root / "_config.yml").write_text(yaml.safe_dump(settings))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(course, "ROOT", root)
        course.settings.cache_clear()
        notebooks = {
            ("exercises", lesson): build.released_notebook(lesson)
            for lesson in LESSONS
        } | {
            ("book", stem): pages.colab_edition(ROOT / "book" / f"{stem}.md")
            for stem in CHAPTERS
        }
    course.settings.cache_clear()
    return notebooks


def solve(notebook, lesson):
    """Put the references of the first exercises in; their names."""
    names = list(exercises(lesson))[:SOLVED]
    for cell in build.read_lesson(lesson):
        if cell.metadata.get("exercise") in names:
            (own,) = (
                each
                for each in notebook.cells
                if each.metadata.get("nbgrader", {}).get("grade_id")
                == cell.metadata["exercise"]
            )
            own.source = cell.source
    return names


def hidden():
    """Top-level modules of this environment that Colab need not have."""
    # The course's own are hidden by taking its install away, since they must
    # be found where the notebook fetches them.
    shipped, todo = {"transformers-and-attention"}, list(SHIPPED)
    while todo:
        name = canonicalize_name(todo.pop())
        if name in shipped:
            continue
        shipped.add(name)
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # for another system or an extra of it
        for need in map(Requirement, needs):
            if not need.marker or need.marker.evaluate({"extra": ""}):
                todo.append(need.name)
    owners = importlib.metadata.packages_distributions()
    return sorted(
        module
        for module, names in owners.items()
        if not shipped & set(map(canonicalize_name, names))
    )


@pytest.fixture(scope="module")
def ran(made, tmp_path_factory):
    """What came of each notebook, alone in a folder; all are run once."""
    root = tmp_path_factory.mktemp("colab")
    jobs = []
    for (room, stem), notebook in made.items():
        if stem.startswith("appx"):
            continue  # needs JAX: see test_appx_jax.py
        folder = root / room / stem
        folder.mkdir(parents=True)
        notebook = copy.deepcopy(notebook)
        if room == "exercises":
            solve(notebook, stem)
        path = folder / f"{stem}.ipynb"
        path.write_bytes(build.notebook_bytes(notebook))
        whole = room == "exercises" or stem == WHOLE
        jobs.append(
            {
                "notebook": str(path),
                "stop": "" if whole else f"from figures import {stem}",
                "extra": ["check.summary()"] * (room == "exercises"),
                "report": str(root / f"{room}-{stem}.json"),
            }
        )
    script = pathlib.Path(__file__).with_name("like_colab.py")
    done = subprocess.run(
        [sys.executable, "-I", script],
        input=json.dumps({"hidden": hidden(), "jobs": jobs}),
        env={
            **os.environ,
            "IPYTHONDIR": str(root),
            "MPLBACKEND": "agg",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        cwd=root,
    )
    assert done.returncode == 0, done.stderr

    def told(room, stem):
        path = root / f"{room}-{stem}.json"
        assert path.exists(), f"{stem} ended its process:\n{done.stderr}"
        return json.loads(path.read_text())

    return told


# What stands in a notebook


def text(notebook, kind):
    """The source of a notebook's cells of a kind, in one piece."""
    return "\n".join(
        cell.source for cell in notebook.cells if cell.cell_type == kind
    )


@pytest.mark.parametrize("room", ["exercises", "book"])
def test_one_setting_reaches_every_notebook(made, address, room):
    for (where, stem), notebook in made.items():
        if where == room:
            assert f'REPOSITORY = "{address}"' in text(notebook, "code"), stem
            # On Colab a path beside the notebook leads nowhere.
            assert "](../" not in text(notebook, "markdown"), stem


def test_every_notebook_asks_for_a_gpu_and_says_what_is_without(made):
    for (_, stem), notebook in made.items():
        assert notebook.metadata.accelerator == "GPU", stem
        assert notebook.metadata.colab.gpuType == "T4", stem
        assert "without one" in text(notebook, "code"), stem


def test_every_notebook_leads_to_handing_in(made):
    for (room, stem), notebook in made.items():
        if room == "exercises":
            last = notebook.cells[-1].source
            for words in ("check.summary()", "hand in", "restart the kernel"):
                assert words in last.replace("\n", " "), stem
        elif stem in LESSONS:
            path = f"exercises/{stem}/{stem}.ipynb"
            assert path in text(notebook, "markdown"), stem


def imported_from_ipython(source):
    """(module, name) of what a cell or a module imports from IPython."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module.partition(".")[0] == "IPython":
                yield from ((node.module, name.name) for name in node.names)
        elif isinstance(node, ast.Import):
            for name in node.names:
                if name.name.partition(".")[0] == "IPython":
                    yield name.name, ""


def test_no_notebook_needs_a_newer_ipython_than_colab_s(made):
    sources = [
        (stem, cell.source)
        for (_, stem), notebook in made.items()
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]
    for path in (ROOT / "book" / "figures").glob("*.py"):
        sources.append((path.name, path.read_text(encoding="utf-8")))
    for where, source in sources:
        # A cell with syntax of IPython's own would not even parse.
        for module, name in imported_from_ipython(source):
            assert module == "IPython.display", where
            assert name in IPYTHON_7, (where, name)


# What a notebook does


@pytest.mark.slow
@pytest.mark.parametrize("lesson", LESSONS)
def test_an_exercise_notebook_runs_from_its_bare_file(ran, lesson):
    told = ran("exercises", lesson)
    assert told["folder"] == [f"{lesson}.ipynb"] and not told["there"]
    assert not told["error"], told["error"]
    points = {
        name: exercise.points for name, exercise in exercises(lesson).items()
    }
    solved = list(points)[:SOLVED]
    shown = dict(told["shown"])
    for name, most in points.items():
        got = float(shown[f'check("{name}", {name})'])
        assert got == (most if name in solved else 0), name
    total = sum(points[name] for name in solved)
    summary = shown["check.summary()"]
    assert summary.startswith(f"{lesson}: {total:g} of ")
    # The page was read: nothing is missing, and nobody says it was not.
    assert "Before you hand in" not in summary


@pytest.mark.slow
@pytest.mark.parametrize(
    "stem", [stem for stem in CHAPTERS if not stem.startswith("appx")]
)
def test_a_chapter_s_figures_come_with_its_bare_file(ran, stem):
    told = ran("book", stem)
    assert told["folder"] == [f"{stem}.ipynb"] and not told["there"]
    assert not told["error"], told["error"]
    assert any(
        f"from figures import {stem}" in each for each, _ in told["shown"]
    )


@pytest.mark.slow
def test_a_whole_chapter_runs_from_its_bare_file(ran, made):
    cells = [
        cell for cell in made["book", WHOLE].cells if cell.cell_type == "code"
    ]
    assert len(ran("book", WHOLE)["shown"]) == len(cells) > 20
