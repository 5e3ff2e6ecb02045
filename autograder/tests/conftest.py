"""What all tests share: the order they run in, and what a machine may lack.

A test that needs a browser or bubblewrap asks for the fixture of that name.
Where the machine has none, the test is skipped with the reason, or fails if
the environment's REQUIRE names it: REQUIRE=browser,bwrap, as in CI.
"""

import os
import shutil
import subprocess

import pytest


def find_browser():
    """The path of a Chromium, and what to do if there is none."""
    names = ["chromium", "chromium-browser", "google-chrome"]
    path = next(filter(None, map(shutil.which, names)), None)
    return path, "no Chromium here: apt install chromium"


def find_bwrap():
    """The path of a bubblewrap that works, and what to do if none does."""
    path = shutil.which("bwrap")
    if path is None:
        return None, "no bubblewrap here: apt install bubblewrap"
    # Installed is not enough: a container may forbid new namespaces.
    trial = subprocess.run(
        [path, "--unshare-all", "--ro-bind", "/", "/", "true"],
        capture_output=True,
        text=True,
    )
    if trial.returncode:
        return None, f"bubblewrap does not work here: {trial.stderr.strip()}"
    return path, ""


TOOLS = {"browser": find_browser, "bwrap": find_bwrap}


def pytest_configure(config):
    """Refuse a REQUIRE that would demand nothing because of a typo."""
    unknown = sorted(required() - TOOLS.keys())
    if unknown:
        raise pytest.UsageError(
            f"REQUIRE names {', '.join(unknown)}; "
            f"it may name {', '.join(TOOLS)}."
        )


def pytest_collection_modifyitems(items):
    """Run slow tests last: a typo should show in seconds."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)


@pytest.fixture(scope="session")
def browser():
    """The path of a Chromium to drive headless."""
    return need("browser")


@pytest.fixture(scope="session")
def bwrap():
    """The path of a bubblewrap that works."""
    return need("bwrap")


def need(tool):
    """A tool's path; otherwise the test is skipped, or fails if required."""
    path, reason = TOOLS[tool]()
    if path is None and tool in required():
        pytest.fail(f"REQUIRE={tool}, but {reason}", pytrace=False)
    if path is None:
        pytest.skip(reason)
    return path


def required():
    """The tools that the environment's REQUIRE names."""
    words = os.environ.get("REQUIRE", "").split(",")
    return {word.strip() for word in words} - {""}


@pytest.fixture(scope="session")
def right_padding():
    """A right answer to padding_mask, the exercise that is quickest."""
    import torch

    def padding_mask(lengths, T):
        at = torch.arange(T, device=lengths.device)
        return at < lengths[:, None, None, None]

    return padding_mask


@pytest.fixture(scope="session")
def long_padding():
    """The mistake padding_mask_off_by_one: one position too many."""
    import torch

    def padding_mask(lengths, T):
        at = torch.arange(T, device=lengths.device)
        return at <= lengths[:, None, None, None]

    return padding_mask
