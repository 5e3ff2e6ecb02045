"""Set up .venv: the course's Python environment.

Run by `make` before every target, with the system's Python and without any
package, so this file stays readable to Pythons older than the course's. It
prints nothing when .venv is as requirements.txt and pyproject.toml want it.
When something is missing, it says what in one sentence.

Run: python3 autograder/bootstrap.py
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OLDEST = (3, 11)
NEWER = ["python3.14", "python3.13", "python3.12", "python3.11"]
# Succeeds in an environment that can be used, and only there.
HEALTH = "import pip, sys; sys.exit(sys.version_info < %r)" % (OLDEST,)


def main(root=ROOT):
    """Bring root/.venv up to date; the text of what is missing, or None."""
    venv = os.path.join(root, ".venv")
    stamp = os.path.join(venv, "setup.stamp")
    unfinished = os.path.join(venv, "setup.unfinished")
    wanted = fingerprint(root)
    if read(stamp) == wanted and works(venv):
        return None
    problem = wrong_python()
    if problem:
        return problem
    if os.path.exists(unfinished) or not works(venv):
        problem = make_venv(venv)
        if problem:
            return problem
    if os.path.exists(stamp):
        os.remove(stamp)
    write(unfinished, "Set-up began here and did not end.\n")
    problem = install(root, venv)
    os.remove(unfinished)
    if problem:
        return problem
    write(stamp, wanted)
    return None


def fingerprint(root):
    """A text that changes when the environment should.

    The folder counts, since an environment cannot be moved.
    """
    digest = hashlib.sha256(root.encode("utf-8", "surrogateescape"))
    for name in ["requirements.txt", "pyproject.toml"]:
        digest.update(read(os.path.join(root, name)).encode("utf-8"))
    return digest.hexdigest() + "\n"


def wrong_python():
    """What to do about a Python that is too old, or None."""
    if sys.version_info >= OLDEST:
        return None
    newer = next((name for name in NEWER if runs(name)), None)
    if newer:
        advice = "run `make PYTHON=%s start`" % newer
    else:
        advice = (
            "install a newer one (python3.12, say) "
            "and run `make PYTHON=python3.12 start`"
        )
    return "The course needs Python %s or newer, and %s is %s: %s." % (
        dotted(OLDEST),
        sys.executable or "python3",
        dotted(sys.version_info[:3]),
        advice,
    )


def make_venv(venv):
    """Make a new .venv in place of what is there."""
    # In an activated .venv we run the Python that is about to be replaced.
    python = getattr(sys, "_base_executable", None) or sys.executable
    version = dotted(sys.version_info[:2])
    if not succeeds([python, "-c", "import ensurepip, venv"]):
        return (
            "Python's venv module is missing: install it (on Debian and "
            "Ubuntu: `apt install python%s-venv`) and run make again."
        ) % version
    say("Making .venv with Python %s ..." % version)
    made = subprocess.Popen(
        [python, "-m", "venv", "--clear", venv],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
    )
    words = made.communicate()[0].split("\n")
    if made.returncode:
        last = [line for line in words if line.strip()][-1:]
        return "%s cannot make the folder .venv: %s" % (
            python,
            " ".join(last) or "it gives no reason.",
        )
    return None


def install(root, venv):
    """Install the requirements, with pip's own progress bars."""
    log = os.path.join(venv, "setup.log")
    say(
        "Installing what requirements.txt lists: a few minutes the first "
        "time, mostly PyTorch.\nThe full log is in .venv/setup.log."
    )
    start, before = time.time(), len(read(log))
    command = [python_of(venv), "-m", "pip", "install", "--log", log]
    command += ["--disable-pip-version-check", "-r", "requirements.txt"]
    pip = subprocess.Popen(
        command, cwd=root, stderr=subprocess.PIPE, universal_newlines=True
    )
    told = False
    for line in pip.stderr:  # all of it is in the log as well
        if "Retrying" in line and not told:
            say("The package index does not answer, trying again ...")
            told = True
    if pip.wait():
        say("")  # pip may have stopped in the middle of a line
        return explain(read(log)[before:])
    say("Set up in %.0f seconds." % (time.time() - start))
    return None


def explain(text):
    """One sentence for what stands in pip's log when it gave up."""
    missing = re.search(r"No matching distribution found for (\S+)", text)
    if re.search(r"No space left|Errno 28", text):
        cause = "the disk is full: make room"
    elif re.search("NewConnectionError|ConnectTimeout|Retrying", text):
        cause = (
            "pip cannot reach the package index: connect to the network "
            "(behind a proxy or a mirror, tell pip in its settings)"
        )
    elif missing:
        cause = (
            "pip finds no %s for Python %s on this kind of machine: "
            "choose another Python (`make PYTHON=python3.12 start`)"
        ) % (missing.group(1), dotted(sys.version_info[:2]))
    else:
        reasons = re.findall(r"ERROR: (?!\[)(.+?)\.?$", text, re.MULTILINE)
        cause = "pip failed (%s): mend that" % (
            reasons[-1] if reasons else "for no reason that it gives"
        )
    return "%s and run make again; the full log is in .venv/setup.log." % (
        cause[0].upper() + cause[1:]
    )


def works(venv):
    """Whether venv holds a Python that starts, with pip, new enough."""
    return succeeds([python_of(venv), "-c", HEALTH])


def python_of(venv):
    """Where the environment's Python is."""
    if os.name == "nt":
        return os.path.join(venv, "Scripts", "python.exe")
    return os.path.join(venv, "bin", "python")


def runs(name):
    """Whether name is a Python that starts (pyenv's shims may not)."""
    return shutil.which(name) and succeeds([name, "-c", ""])


def succeeds(command):
    """Whether a command exists and exits with 0, whatever it prints."""
    try:
        return not subprocess.call(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    except OSError:
        return False


def read(path):
    """A file's text, "" if there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def write(path, text):
    """Write a small text file."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def dotted(version):
    """(3, 11) -> "3.11"."""
    return ".".join(str(part) for part in version)


def say(text):
    """Print at once, so that it stands before what pip prints."""
    print(text)
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\nSet-up was interrupted: run make again to finish it.")
