"""A page for a learner: their code, each check's report, what was mended.

Nothing of a learner's runs in it: code and output are text, Markdown keeps
neither HTML nor odd links, and the page itself forbids scripts.
"""

import functools
import html
import re

import mistune
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from autograder.course import checked_by, stamp
from autograder.grading.records import report_of
from autograder.report import points_text

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
PICTURE = re.compile(r"[A-Za-z0-9+/=\s]+")
MAX_LINES, MAX_CODE = 400, 40_000  # lines and characters of a shown cell
MAX_OWN = 400_000  # characters of all shown cells that learners have added
MAX_KEPT = 5_000  # characters of a cell whose colours are kept for the next
STYLE = """
:root { color-scheme: light dark; --line: rgba(128,128,128,.35);
  --soft: rgba(128,128,128,.10); --blue: #0969da; }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 50rem;
  margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem; }
.score { font-size: 2rem; font-weight: 650; }
.bar { height: 8px; border-radius: 4px; background: var(--line);
  margin: .4rem 0 1rem; }
.bar div { height: 8px; border-radius: 4px; background: #1a7f37; }
table { border-collapse: collapse; width: 100%; font-size: .95rem; }
td, th { padding: .25rem .6rem .25rem 0; text-align: left;
  border-bottom: 1px solid var(--line); }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
pre { background: var(--soft); border: 1px solid var(--line);
  border-radius: 6px; padding: .7rem .9rem; overflow-x: auto;
  font: 13px/1.45 ui-monospace, monospace; }
pre.out { border-style: dashed; white-space: pre-wrap;
  overflow-wrap: anywhere; }
.note { border-left: 3px solid var(--blue); background: var(--soft);
  padding: .4rem .8rem; margin: .8rem 0; border-radius: 0 4px 4px 0; }
.own { opacity: .92; margin-left: 1rem; }
img { max-width: 100%; background: white; }
a { color: var(--blue); }
@media (prefers-color-scheme: dark) { :root { --blue: #6cb6ff; } }
@media print { body { max-width: none; } pre { white-space: pre-wrap; } }
"""


def page(made):
    """The page of one record, as HTML.

    made: as of `as_it_stands`, with what a person who graded has set or
        written
    """
    title = _title(made["lesson"]) if made["lesson"] else made["file"]
    body = [
        f"<h1>{html.escape(title)}</h1>",
        f"<div>{html.escape(made['student'])} · "
        f"{html.escape(made['file'])}</div>",
    ]
    if made["problem"]:
        body.append(_note("This file could not be graded", [made["problem"]]))
    else:
        body += [_score(made), _lateness(made), _overview(made)]
    body.append(_note("How your notebook was read", made["repairs"]))
    body += _sections(made)
    return (
        "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>"
        f"<meta http-equiv='Content-Security-Policy' content=\"{POLICY}\">"
        "<meta name='viewport' content='width=device-width'>"
        f"<title>{html.escape(title)}: feedback</title>"
        f"<style>{STYLE}{_code_style()}</style></head><body>"
        f"{''.join(filter(None, body))}</body></html>\n"
    )


def _title(lesson):
    try:
        return stamp(lesson)["title"]
    except (OSError, KeyError):
        return lesson


@functools.cache
def _titles(lesson):
    try:
        return {
            each["name"]: each["title"] for each in stamp(lesson)["exercises"]
        }
    except (OSError, KeyError):
        return {}


@functools.cache
def _code_style():
    light = HtmlFormatter(style="friendly").get_style_defs("pre.code")
    dark = HtmlFormatter(style="github-dark").get_style_defs("pre.code")
    light, dark = (
        re.sub(r"background: ?#\w+;?", "", text) for text in (light, dark)
    )
    return f"{light}\n@media (prefers-color-scheme: dark) {{ {dark} }}"


def _score(made):
    share = made["points"] / made["max_points"] if made["max_points"] else 0
    return (
        f"<div class='score'>{made['points']:g} of "
        f"{points_text(made['max_points'])}</div>"
        # Extra credit may be more than all.
        f"<div class='bar'><div style='width:{min(share, 1):.0%}'></div></div>"
    )


def _lateness(made):
    if not made.get("late"):
        return ""
    cost = points_text(made["penalty"]) if made["penalty"] else "nothing"
    return _note(
        "Late",
        [
            f"It came {_duration(made['late'])} after it was due; "
            f"{cost} taken off."
        ],
    )


def _duration(seconds):
    """Seconds as text, in the two largest units that it takes."""
    minutes = round(seconds / 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [
        f"{count} {noun}{'' if count == 1 else 's'}"
        for count, noun in (
            (days, "day"),
            (hours, "hour"),
            (minutes, "minute"),
        )
        if count
    ]
    return " ".join(parts[:2]) or "less than a minute"


def _overview(made):
    titles = _titles(made["lesson"])
    rows = "".join(
        f"<tr><td><a href='#{html.escape(each['exercise'])}'>"
        f"{html.escape(titles.get(each['exercise'], each['exercise']))}</a>"
        f"</td><td>{_verdict(each)}</td><td class='n'>{each['points']:g}</td>"
        f"<td class='n'>{each['max_points']:g}</td></tr>"
        for each in made["exercises"]
    )
    return (
        "<table><thead><tr><th>Exercise</th><th></th><th class='n'>"
        f"Points</th><th class='n'>of</th></tr></thead><tbody>{rows}"
        "</tbody></table>"
    )


def _verdict(exercise):
    if exercise["passed"]:
        return "✓ solved"
    return "✗ not yet" if exercise["attempted"] else "– not attempted"


def _note(title, texts):
    if not texts:
        return ""
    items = "".join(f"<div>{html.escape(text)}</div>" for text in texts)
    return f"<div class='note'><strong>{title}</strong>{items}</div>"


def _sections(made):
    reports = {each["exercise"]: each for each in made["exercises"]}
    titles = _titles(made["lesson"])
    left = MAX_OWN
    for index, cell in enumerate(made["cells"]):
        if cell["role"] == "answer":
            name = _exercise_after(made["cells"], index) or cell["name"]
            yield (
                f"<h2 id='{html.escape(name)}'>"
                f"{html.escape(titles.get(name, name))}</h2>"
            )
            if reports.get(name, {}).get("attempted", True):
                yield _cell(cell)
        elif cell["role"] == "check":
            exercise = reports.get(checked_by(cell["name"]))
            if exercise:
                yield report_of(exercise)._repr_html_()
                yield _note("From the person who graded", _by_hand(exercise))
        elif cell["role"] == "own":
            if left > 0:
                yield f"<div class='own'>{_cell(cell)}</div>"
            left -= min(len(cell["source"]), MAX_CODE)
        elif cell["role"] == "given" and _error(cell):
            yield _cell(cell)
    if left <= 0:
        yield _note("Not shown here", ["Further cells that you added."])


def _by_hand(exercise):
    """What a person has set or written, as texts."""
    told = []
    if exercise.get("by_hand") is not None:
        told.append(f"{points_text(exercise['by_hand'])} given by hand.")
    if exercise.get("extra"):
        told.append(f"{points_text(exercise['extra'])} of extra credit.")
    if exercise.get("comment"):
        told.append(exercise["comment"])
    return told


def _exercise_after(cells, index):
    return next(
        (
            checked_by(cell["name"])
            for cell in cells[index:]
            if cell["role"] == "check"
        ),
        "",
    )


def _cell(cell):
    if cell["kind"] != "code":
        return _markdown(cell["source"][:20_000])
    lines = cell["source"].split("\n")
    source = "\n".join(lines[:MAX_LINES])[:MAX_CODE]
    if len(lines) > MAX_LINES:
        source += f"\n# … {len(lines) - MAX_LINES} more lines"
    coloured = _known if len(source) <= MAX_KEPT else _highlighted
    shown = [f"<pre class='code'>{coloured(source)}</pre>"]
    output = cell["output"] or {}
    text = output.get("text", "").strip("\n")
    if text:
        shown.append(f"<pre class='out'>{html.escape(text)}</pre>")
    for data in output.get("shown", ()):
        picture = data.get("image/png", "")
        if picture and PICTURE.fullmatch(picture):
            shown.append(
                f"<img alt='a picture that this cell shows' "
                f"src='data:image/png;base64,{picture}'>"
            )
        elif data.get("text/plain"):
            shown.append(
                f"<pre class='out'>{html.escape(data['text/plain'])}</pre>"
            )
    shown.append(_error(cell))
    return "".join(shown)


def _error(cell):
    error = (cell["output"] or {}).get("error")
    if not error:
        return ""
    if error["kind"] in ("late", "dead"):
        text = (
            f"This cell was {error['text']}."
            if (error["kind"] == "late")
            else f"{error['text'].capitalize()}."
        )
    elif error["module"]:
        text = (
            f"The module {error['module']} is not there when this "
            "notebook is graded. Solve the exercise without it."
        )
    else:
        return ""  # the traceback is among the output already
    return f"<div class='note'>{html.escape(text)}</div>"


def _highlighted(source):
    return highlight(source, *_colours())


_known = functools.lru_cache(maxsize=2048)(_highlighted)


@functools.cache
def _colours():
    return PythonLexer(stripnl=False), HtmlFormatter(nowrap=True)


@functools.cache
def _renderer():
    # Escaping HTML also makes mistune refuse links that would run code.
    return mistune.create_markdown(escape=True, plugins=["table"])


@functools.lru_cache(maxsize=2048)  # many hand in the text as it was
def _markdown(source):
    made = _renderer()(source)
    # A picture from elsewhere would tell its host who reads this.
    return re.sub(r"<img [^>]*>", "[picture]", made)


def harmless_markdown(source):
    """Learners' Markdown without HTML, links and pictures, for pages that
    render it as it is.

    Whatever a link leads to can be spelt in too many ways to look for some.
    Those in formulas are left to MathJax, which both nbgrader and JupyterLab
    load with its extension Safe.
    """
    source = re.sub(r"<(?=[A-Za-z/!?])", "&lt;", source)
    return re.sub(r"\](?=[(:])", "] ", source)
