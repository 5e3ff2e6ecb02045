"""What stands in for `google.colab` where a notebook is graded.

A notebook saved on Colab mounts a drive, asks for files or reads secrets.
None of that is there, and none of it should stop the cells that follow: every
name exists, every call returns another such nothing. It installs packages,
too: without a network that fails at length, so a sentence is said instead.
"""

import importlib.abc
import importlib.machinery
import importlib.metadata
import os
import re
import shlex
import subprocess
import sys
import types

NAME = "google.colab"
INSTALLER = re.compile(
    r"""(?:^|[;&|(]\s*)(?:sudo\s+)?      # where a command begins
    (?:(?:'[^']*'|"[^"]*"|\S+)\s+-m\s+)?  # run as a module
    (?:uv\s+)?\S*\b(?:pip[\d.]*|conda|mamba|micromamba|uv|apt|apt-get)
    \s+(?:-\S+\s+)*(?:install|add|download|update|upgrade)\b
    (?P<rest>(?:[^;&|)]|(?<=>)&)*)""",
    re.VERBOSE,
)
# Options and signs whose next word is no package.
WITH_VALUE = frozenset(
    "-r --requirement -c --constraint --channel -e --editable -t --target -i "
    "--index-url --extra-index-url -f --find-links -n --name -p --prefix "
    "--root --progress-bar --timeout --retries --trusted-host > 2>".split()
)
STREAMS = ("2>&1", "1>&2", "2>/dev/null", "1>/dev/null")
PACKAGE = re.compile(r"[A-Za-z0-9][\w.-]*(?=$|[\[<>=!~@; ])")


class Nothing(dict):
    """It can be called, entered, iterated and read, and holds nothing."""

    def __call__(self, *args, **kwargs):
        return Nothing()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return None


class _Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name == NAME or name.startswith(f"{NAME}."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        return None


class _Process(subprocess.Popen):
    """A process, which only says a sentence instead of installing something.

    A cell stops where `subprocess.check_call` cannot install.
    """

    def __init__(self, args, *more, **options):
        told = told_of_installing(_as_typed(args))
        if told:
            args = ["echo", told]
            if options.get("shell"):
                args = shlex.join(args)
        super().__init__(args, *more, **options)


def _as_typed(args):
    """A process's arguments as they would be typed in a shell."""
    if isinstance(args, list | tuple):
        return shlex.join(map(os.fsdecode, args))
    return os.fsdecode(args)


def install():
    """Make `import google.colab` and everything below it work.

    Processes that would install packages say what `told_of_installing` does.
    """
    subprocess.Popen = _Process
    sys.meta_path.insert(0, _Finder())
    try:
        import google
    except ImportError:
        google = sys.modules["google"] = types.ModuleType("google")
        google.__path__ = []
    # Without it `from google import colab` asks the package first.
    import google.colab

    google.colab = sys.modules[NAME]


def told_of_installing(command):
    """What to say instead of running a command, "" if it installs nothing."""
    found = INSTALLER.search(command)
    if not found:
        return ""
    names = _packages(found["rest"])
    there = [name for name in names if _is_there(name)]
    missing = [name for name in names if name not in there]
    told = []
    if there:
        told.append(f"Not needed here: {', '.join(there)} is installed.")
    if missing:
        told.append(
            f"{', '.join(missing)} cannot be installed when a notebook is "
            "graded: solve the exercises without it."
        )
    if not names:
        told.append(
            "Nothing can be installed when a notebook is graded: solve the "
            "exercises with what is there."
        )
    return "\n".join(told)


def _packages(words):
    """The names of the packages that an installer is given."""
    try:
        words = shlex.split(words)
    except ValueError:  # a quotation mark that is never closed
        words = words.replace("'", "").replace('"', "").split()
    names = []
    for before, word in zip(["", *words], words, strict=False):
        name = PACKAGE.match(word)
        if name and before not in WITH_VALUE and word not in STREAMS:
            names.append(name[0])
    return names


def _is_there(name):
    """Whether a package can be imported, not only whether it is listed."""
    try:
        files = importlib.metadata.files(name) or ()
    except importlib.metadata.PackageNotFoundError:
        return False
    # What would be a whole answer is listed, but its modules are hidden.
    modules = (path for path in files if path.suffix == ".py")
    return any(path.locate().exists() for path in modules)
