"""Runs notebooks as Colab would, as far as one machine can imitate it.

python -I like_colab.py < jobs.json

What Colab lacks is hidden, `google.colab` is there, and each notebook starts
in a process of its own, forked from one that has torch loaded, in a folder
that holds nothing else. A job is {"notebook": path, "stop": words, "extra":
cells to run at the end, "report": where to write}; the run stops after the
first cell with the words.
"""

import importlib.util
import json
import os
import pathlib
import sys
import traceback
import types
from importlib.machinery import PathFinder


class Shipped:
    """Finds modules on sys.path, but for those that Colab does not ship."""

    def __init__(self, hidden):
        self.hidden = set(hidden)

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.hidden:
            return None
        return PathFinder.find_spec(name, path, target)


def hide(names):
    """Hide packages, and the editable install of the course."""
    sys.meta_path[:] = [
        Shipped(names) if finder is PathFinder else finder
        for finder in sys.meta_path
        if "__editable__" not in getattr(finder, "__module__", "")
    ]
    # As in a kernel, modules are looked for in the notebook's folder, too.
    sys.path[:] = [
        "",
        *(each for each in sys.path if "__editable" not in each),
    ]


def imitate_colab(notebook):
    """Put google.colab there, whose page shows the notebook."""
    google = types.ModuleType("google")
    google.__path__ = []
    google.colab = types.ModuleType("google.colab")
    google.colab._message = types.SimpleNamespace(
        blocking_request=lambda kind, request="", timeout_sec=None: (
            {"ipynb": notebook} if kind == "get_ipynb" else None
        )
    )
    sys.modules |= {"google": google, "google.colab": google.colab}


def run(job):
    """Run a notebook's code cells in this process; what came of it."""
    path = pathlib.Path(job["notebook"])
    made = json.loads(path.read_text(encoding="utf-8"))
    os.chdir(path.parent)
    imitate_colab(made)
    shell = InteractiveShell.instance()
    course = ("autograder", "solutions", "figures")
    told = {
        "folder": os.listdir(),
        "there": [name for name in course if importlib.util.find_spec(name)],
        "shown": [],
        "error": "",
    }
    sources = [
        "".join(cell["source"])
        for cell in made["cells"]
        if cell["cell_type"] == "code"
    ]
    for source in [*sources, *job["extra"]]:
        result = shell.run_cell(source)
        try:
            result.raise_error()
        except BaseException:
            told["error"] = f"{source}\n{traceback.format_exc()}"
            break
        told["shown"].append([source, repr(result.result)])
        if job["stop"] and job["stop"] in source:
            break
    return told


def main():
    """Run one job after the other, each in a child."""
    for job in asked["jobs"]:
        child = os.fork()
        if not child:
            try:
                told = run(job)
                pathlib.Path(job["report"]).write_text(json.dumps(told))
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    hide(asked["hidden"])
    import matplotlib.pyplot  # noqa: F401  Colab has it loaded, too
    import torch
    from IPython.core.interactiveshell import InteractiveShell

    # More would leave a forked child waiting for threads that it lacks.
    torch.set_num_threads(1)
    main()
