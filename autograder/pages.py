"""Pages of the book: how a solution reads, and a chapter's Colab edition."""

import functools
import re
import textwrap

import jupytext
import pybtex.database
from nbformat.v4 import new_code_cell

from autograder.course import SourceError
from autograder.notebooks import (
    COLAB,
    id_from,
    markdown_cell,
    notebook,
    setup_cell,
)

ADMONITIONS = {
    "note": "Note",
    "tip": "Tip",
    "warning": "Warning",
    "important": "Important",
}
FENCE = re.compile(r"^(?P<marks>`{3,}|:{3,})\{(?P<name>[^}]+)\} *(?P<arg>.*)$")
INNER_FENCE = re.compile(r"(`{3,}|:{3,})\{[\w:-]+\}")
ROLE = re.compile(r"\{(?P<name>[a-z:-]+)\}`(?P<body>[^`]+)`")
LABEL = re.compile(r"^\([\w-]+\)=$")


def solution_page(text, **_options):
    """A lesson's percent script as the notebook that its page shows.

    Each answer is folded, so that whoever reads a task can still think, and
    is followed by its check. The marks around it are left out; the title is
    not the chapter's.
    """
    made = jupytext.reads(text, fmt="py:percent")
    cells = []
    for cell in made.cells:
        cells.append(cell)
        name = cell.metadata.get("exercise")
        if name:
            cell.source = re.sub(
                r"\n *### (BEGIN|END) SOLUTION\b.*", "", cell.source
            )
            cell.metadata["tags"] = ["hide-input"]
            cell.metadata["mystnb"] = {
                "code_prompt_show": "Show an answer",
                "code_prompt_hide": "Hide the answer",
            }
            cells.append(new_code_cell(f'check("{name}", {name})'))
    title, _, text = cells[0].source.partition("\n")
    cells[0].source = f"{title}: solutions\n{text}"
    made.cells = cells
    return made


def colab_edition(path):
    """A chapter as a notebook in which every directive is plain Markdown.

    raises SourceError: it uses a directive or a role that has no plain form
    """
    made = jupytext.reads(path.read_text(encoding="utf-8"), fmt="md:myst")
    cells = []
    for cell in made.cells:
        if cell.cell_type == "markdown":
            cells.append(markdown_cell(plain_markdown(cell.source, path)))
            continue
        cell.id = id_from("code", cell.source)
        tags = cell.metadata.get("tags", [])
        mystnb = cell.metadata.pop("mystnb", {})
        if {"hide-input", "remove-input"} & set(tags):
            cell.metadata["cellView"] = "form"
        cells.append(cell)
        caption = mystnb.get("figure", {}).get("caption")
        if caption:
            text = plain_markdown(caption.strip(), path)
            cells.append(markdown_cell(f"*Figure.* {text}"))
    cells.insert(1, setup_cell("book"))  # below the title
    return notebook(cells, path.stem, **COLAB)


def plain_markdown(text, path):
    """Markdown that any notebook viewer renders, from a chapter's MyST."""
    lines, made = iter(text.split("\n")), []
    for line in lines:
        found = FENCE.match(line)
        if found:
            body = list(_until(lines, found["marks"], line, path))
            made += _directive(found["name"], found["arg"], body, path)
        elif INNER_FENCE.search(line):
            raise SourceError(
                f"{path.name}: {line.strip()!r} opens a directive inside a "
                "line: it must begin at the margin."
            )
        elif not LABEL.match(line):
            made.append(_roles(line, path))
    return "\n".join(made).strip("\n")


def _until(lines, marks, opening, path):
    for line in lines:
        if line.rstrip() == marks:
            return
        yield line
    raise SourceError(f"{path.name}: {opening!r} is never closed")


def _directive(name, argument, body, path):
    options = {}
    while body and re.match(r"^:[\w-]+:", body[0]):
        key, _, value = body.pop(0)[1:].partition(":")
        options[key] = value.strip()
    inner = plain_markdown("\n".join(body), path).strip("\n")
    if name in ADMONITIONS or name == "admonition":
        title = _roles(argument or ADMONITIONS.get(name, "Note"), path)
        quoted = textwrap.indent(
            f"**{title}.**\n\n{inner}", "> ", lambda line: True
        )
        return [line.rstrip() for line in quoted.split("\n")]
    if name == "dropdown":
        return [
            f"<details><summary>{_roles(argument, path)}</summary>",
            "",
            inner,
            "",
            "</details>",
        ]
    if name == "math":
        return ["$$", inner, "$$"]
    if name == "figure":
        return [
            f"![{options.get('alt', '')}]({argument})",
            "",
            f"*Figure.* {inner}",
        ]
    raise SourceError(
        f"{path.name}: the directive {name!r} has no plain form for Colab. "
        f"Use one of {', '.join([*ADMONITIONS, 'admonition'])}, dropdown, "
        "figure or math, or teach autograder/pages.py another."
    )


def _roles(line, path):
    return ROLE.sub(
        lambda found: _role(found["name"], found["body"], path), line
    )


def _role(name, body, path):
    if name in ("cite", "cite:t", "cite:p"):
        return ", ".join(
            _citation(key.strip(), path) for key in body.split(",")
        )
    if name == "math":
        return f"${body}$"
    if name in ("doc", "ref", "term"):
        title, _, _target = body.partition(" <")
        return f"*{title.rpartition('/')[2]}*"
    raise SourceError(
        f"{path.name}: the role {{{name}}} has no plain form for Colab; "
        "use cite, cite:t, doc, ref, term or math."
    )


def _citation(key, path):
    entry = _references(path.parent / "references.bib").entries.get(key)
    if entry is None:
        raise SourceError(
            f"book/{path.name} cites {key!r}, which book/references.bib lacks"
        )
    names = [" ".join(person.last_names) for person in entry.persons["author"]]
    who = (
        names[0]
        if len(names) == 1
        else " & ".join(names)
        if len(names) == 2
        else f"{names[0]} et al."
    )
    shown = f"{who}, {entry.fields['year']}"
    url = entry.fields.get("url")
    return f"[{shown}]({url})" if url else f"({shown})"


@functools.cache
def _references(path):
    return pybtex.database.parse_file(str(path))
