"""Copy MathJax into the book, so that formulas need no other host.

MathJax comes from the package django-static-mathjax (MathJax 3.2.2, plain
files, no dependencies), which requirements.txt pins: nothing is downloaded
here. The copy, about 2 MB, is not kept in git.

Run: python book/assets/fetch_mathjax.py
"""

import importlib.resources
import pathlib
import shutil

PARTS = [
    "tex-mml-chtml.js",
    "input/tex/extensions",  # loaded when a formula asks for one
    "output/chtml/fonts/woff-v2",
]


def main():
    """Replace book/assets/mathjax by a fresh copy."""
    source = importlib.resources.files("mathjax") / "static" / "mathjax"
    target = pathlib.Path(__file__).parent / "mathjax"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    shutil.copy(source / "LICENSE", target / "LICENSE")
    for part in PARTS:
        path = source / "es5" / part
        copy = shutil.copytree if path.is_dir() else shutil.copy
        (target / part).parent.mkdir(parents=True, exist_ok=True)
        copy(path, target / part)


if __name__ == "__main__":
    main()
