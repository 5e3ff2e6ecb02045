"""The built book that several tests read: its pages, and where they lie."""

import re

import pytest
import yaml

from autograder.course import ROOT

SITE = ROOT / "_build" / "html"
EXECUTED = ROOT / "_build" / "jupyter_execute"


def toc_pages():
    """The book's pages in their order, as _toc.yml names them."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    parts = toc.get("parts", [])
    return [
        toc["root"],
        *(each["file"] for part in parts for each in part["chapters"]),
    ]


PAGES = toc_pages()
CHAPTERS = [page for page in PAGES if re.match(r"book/ch\d", page)]
APPENDICES = [page for page in PAGES if page.startswith("book/appx_")]


def built(path):
    """A path, if the build has made it; else the test says what to do."""
    if not path.exists():
        what = path.relative_to(ROOT / "_build")
        pytest.fail(f"{what} is not built: run make book", pytrace=False)
    return path
