"""What a notebook's cell says as Python, whatever else IPython takes."""

import ast
import contextlib
import functools
import re

# Magics, shell lines and questions of IPython: %cd x, a = !ls, f?
NO_PYTHON = re.compile(
    r"^([ \t]*)(?:(?:\w[\w, ]*=[ \t]*)?[%!].*|\?.*|[\w.]+\?\??[ \t]*)$",
    re.MULTILINE,
)
DEFINITION = re.compile(r"^(?:async +)?(?:def|class) +(\w+)", re.MULTILINE)


# Python takes 500 bytes a character to parse a cell: 10 GB for one of 20 MB.
MAX_PARSED = 100_000


def parses(source):
    """Whether a cell is Python, magics and shell lines aside."""
    return _seen(source)[0]


def defines(source):
    """Names that a cell binds at its top by def, class or assignment."""
    return _seen(source)[1]


@functools.lru_cache(maxsize=4096)
def _seen(source):
    """Whether a cell is Python, and what it defines; the tree is let go."""
    tree = None
    if len(source) <= MAX_PARSED:
        with contextlib.suppress(
            SyntaxError, ValueError, RecursionError, MemoryError
        ):
            tree = ast.parse(NO_PYTHON.sub(r"\1pass", source))
    if tree is None:
        return False, frozenset(DEFINITION.findall(source))
    return True, frozenset(name for node in tree.body for name in _bound(node))


def _bound(node):
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = []
    if isinstance(node, ast.Assign):  # softmax = lambda x: …
        targets = node.targets
    elif isinstance(node, ast.AnnAssign) and node.value:
        targets = [node.target]
    return [each.id for each in targets if isinstance(each, ast.Name)]
