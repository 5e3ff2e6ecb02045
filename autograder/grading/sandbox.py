"""Where learners' code runs: what it can see, and what it may use.

bubblewrap (a Debian package) gives it a system without network, course,
gradebook and other people's files. Where it is missing, namespaces hide what
they can; where those are missing too, limits remain. What is then not
protected is said, never assumed.
"""

import dataclasses
import functools
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig

from autograder.course import ROOT

MIB = 2**20
# Packages with models that would be whole answers.
ANSWERS = (
    "transformers",
    "x_transformers",
    "flash_attn",
    "xformers",
    "fairscale",
    "torchtune",
    "keras",
    "keras_hub",
    "timm",
    "flax",
)
# What of the course a learner does not have.
HIDDEN = ("solutions", "_build", "exercises", ".git", "autograder/tests")
# Folders of which each notebook has empty ones of its own.
PRIVATE = ("/tmp", "/dev/shm")
FIRST_USER, USERS = 61_000, 4_000


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one notebook may use.

    cell: seconds of processor time, and twice as many on the clock
    probe, notebook: seconds on the clock
    cpu: seconds of processor time that one exercise's check may take
    memory, disk: bytes, beyond what the warm process has
    """

    cell: float = 15
    probe: float = 30
    cpu: int = 10
    notebook: float = 180
    memory: int = 2048 * MIB
    disk: int = 64 * MIB
    processes: int = 64
    files: int = 256


@dataclasses.dataclass(frozen=True)
class Sandbox:
    """A way to start a warm process.

    prefix: the command before the one that is to run in it
    name: "bubblewrap" or "plain"
    """

    name: str
    prefix: tuple[str, ...] = ()


class NoSandboxError(RuntimeError):
    """The sandbox is demanded and not there; the text says what to do."""


@functools.cache
def find_sandbox(required=False):
    """The best sandbox that works here.

    AUTOGRADER_PLAIN in the environment leaves bubblewrap out, as tests do;
    AUTOGRADER_NO_NAMESPACES (`worker.py`) leaves namespaces out.

    raises NoSandboxError: if only plain processes do, and that is not enough
    """
    trouble = "bubblewrap is not installed (on Debian: apt install bubblewrap)"
    if shutil.which("bwrap") and not os.environ.get("AUTOGRADER_PLAIN"):
        for prefix in _prefixes():
            trial = subprocess.run(
                [*prefix, sys.executable, "-c", ""],
                capture_output=True,
                text=True,
            )
            if trial.returncode == 0:
                return Sandbox("bubblewrap", tuple(prefix))
            trouble = f"bubblewrap does not work here: {trial.stderr.strip()}"
    if required:
        raise NoSandboxError(
            f"--require-sandbox: {trouble}. Nothing was graded."
        )
    return Sandbox("plain")


def statement(sandbox, isolated):
    """What is not protected, as sentences; empty if everything is."""
    if sandbox.name == "bubblewrap" and isolated:
        return ""
    if sandbox.name == "bubblewrap":
        return (
            "Learners' code runs in bubblewrap, but this system allows "
            "no namespaces inside it: notebooks graded one after the "
            "other are not protected from each other."
        )
    if isolated:
        return (
            "Learners' code runs without bubblewrap: it has no network "
            "and sees no other process, but it can read the files that "
            "you can read, and write where you can write. Install "
            "bubblewrap, or grade as a user of its own."
        )
    return (
        "Learners' code runs without a sandbox: it can use the network, "
        "read and write your files, and see other processes. Only "
        "limits on time, memory and processes hold. Install bubblewrap "
        "before you grade strangers' notebooks."
    )


def _prefixes():
    """Commands to try, the best first."""
    known = [
        "bwrap",
        "--die-with-parent",
        "--new-session",
        "--unshare-ipc",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-uts",
        "--unshare-cgroup-try",
        *_mounts(),
        "--clearenv",
    ]
    for name, value in environment().items():
        known += ["--setenv", name, value]
    setpriv = shutil.which("setpriv")
    if os.geteuid() == 0 and setpriv:
        user = str(FIRST_USER + os.getpid() % USERS)
        # Limits on processes do not bind root, so become somebody else, and
        # do so inside, since the course may lie where nobody else may look.
        # The system's own /proc, unlike a fresh one, lets the session mount
        # one of its own, which hides it.
        yield [
            *known,
            "--bind",
            "/proc",
            "/proc",
            "--cap-drop",
            "ALL",
            "--cap-add",
            "CAP_SETUID",
            "--cap-add",
            "CAP_SETGID",
            setpriv,
            "--reuid",
            user,
            "--regid",
            user,
            "--clear-groups",
            "--inh-caps",
            "-all",
            "--no-new-privs",
        ]
    yield [*known, "--proc", "/proc", "--unshare-user"]


def _mounts():
    """What the sandbox shows of the file system, all of it read-only."""
    mounts = []
    for path in ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"):
        if os.path.islink(path):
            mounts += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            mounts += ["--ro-bind", path, path]
    for path in (
        "/etc/ld.so.cache",
        "/etc/ld.so.conf",
        "/etc/ld.so.conf.d",
        "/etc/alternatives",
        "/etc/localtime",
        "/etc/fonts",
        "/etc/ssl",
        "/etc/mime.types",
    ):
        mounts += ["--ro-bind-try", path, path]
    mounts += ["--dev", "/dev", "--dir", "/proc"]
    for path in PRIVATE:
        mounts += ["--perms", "1777", "--tmpfs", path]
    # After /tmp, below which a course may lie.
    shown = shown_folders()
    for path in shown:
        # Parents that bubblewrap makes itself are closed to other users.
        for parent in reversed(path.parents):
            mounts += ["--dir", str(parent)]
        mounts += ["--ro-bind", str(path), str(path)]
    hidden = [
        str(path)
        for path in hidden_folders()
        if any(map(path.is_relative_to, [*shown, "/usr"]))
    ]
    for path in hidden:
        mounts += ["--tmpfs", path]
    # What bubblewrap has made itself belongs to whoever grades, unless that
    # is root; a notebook could leave something there for the next one.
    for path in [*hidden, "/dev", "/"]:
        mounts += ["--remount-ro", path]
    return mounts


def shown_folders():
    """The folders, besides the system's, that learners' code imports from."""
    return [*_python_folders(), ROOT / "autograder"]


def _python_folders():
    """The folders that this Python imports from, without the course's."""
    folders = [pathlib.Path(sys.prefix), pathlib.Path(sys.base_prefix)]
    # The interpreter's links lead through folders of other names.
    link = pathlib.Path(sys.executable)
    while link.is_symlink():
        link = link.parent / os.readlink(link)
        folders.append(link.parent.parent)
    folders += map(pathlib.Path, sysconfig.get_paths().values())
    kept = []
    for folder in folders:
        if (
            folder.is_dir()
            and not ROOT.is_relative_to(folder)
            and not any(folder.is_relative_to(one) for one in [*kept, "/usr"])
        ):
            kept.append(folder)
    return kept


def hidden_folders():
    """Folders that learners' code must not see."""
    candidates = [ROOT / name for name in HIDDEN]
    for name in ANSWERS:
        spec = importlib.util.find_spec(name)
        for place in (spec and spec.submodule_search_locations) or ():
            candidates.append(pathlib.Path(place))
    return [path for path in candidates if path.is_dir()]


def environment():
    """The environment of a warm process: nothing of the grader's own."""
    return {
        "PATH": os.pathsep.join(
            [os.path.dirname(sys.executable), "/usr/local/bin:/usr/bin:/bin"]
        ),
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "HOME": "/tmp",
        # A fork copies the table of pages, which is short if they are large.
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "MPLBACKEND": "Agg",
        "NBGRADER_EXECUTION": "autograde",
        # There is no network: fail at once instead of trying again.
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "HF_HUB_OFFLINE": "1",
    }
