"""Grading submissions: from what arrives to nbgrader's gradebook."""

import contextlib
import gc
import secrets


@contextlib.contextmanager
def importing():
    """Import something large inside it.

    That makes a million objects, and to look for garbage among them again
    and again takes a third of the time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def recorded_seed(folder):
    """The seed of a batch's fresh inputs, drawn once and kept in a folder.

    Everybody is judged alike and a regrade repeats, because stock nbgrader
    and `grade` read the same file.
    """
    path = folder / "seed"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(secrets.token_hex(16) + "\n", encoding="utf-8")
    return path.read_text(encoding="utf-8").strip()
