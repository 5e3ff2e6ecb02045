"""What a notebook's cell says as Python, whatever else IPython takes."""

import ast
import functools
import re

# Magics, shell lines and questions of IPython: %cd x, a = !ls, f?
NO_PYTHON = re.compile(
    r"^([ \t]*)(?:(?:\w[\w, ]*=[ \t]*)?[%!].*|\?.*|[\w.]+\?\??[ \t]*)$",
    re.MULTILINE,
)
DEFINITION = re.compile(r"^(?:async +)?(?:def|class) +(\w+)", re.MULTILINE)


def parses(source):
    """Whether a cell is Python, magics and shell lines aside."""
    return tree_of(source) is not None


@functools.lru_cache(maxsize=4096)
def tree_of(source):
    """A cell's syntax tree, magics and shell lines left out, or None."""
    plain = NO_PYTHON.sub(r"\1pass", source)
    try:
        return ast.parse(plain)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def defines(source):
    """Names that a cell binds at its top by def, class or assignment."""
    tree = tree_of(source)
    if tree is None:
        return frozenset(DEFINITION.findall(source))
    return frozenset(name for node in tree.body for name in _bound(node))


def _bound(node):
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = []
    if isinstance(node, ast.Assign):  # softmax = lambda x: …
        targets = node.targets
    elif isinstance(node, ast.AnnAssign) and node.value:
        targets = [node.target]
    return [each.id for each in targets if isinstance(each, ast.Name)]
