"""How a verdict reads: as a number, in a terminal, on a page."""

import dataclasses
import html
import textwrap

import numpy as np

SHOWN = 8  # numbers of an array that are written out in a call

# Of lines and bars, on light and on dark grounds; no colour is readable as
# text on both, so all text takes the colour of its page.
GREEN, RED, GREY, BLUE = "#2b984c", "#e64a4f", "#7f8792", "#3384ee"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One property and whether it holds.

    passed: None if an earlier failure makes it meaningless
    message: what to think about next
    mistake: id of the mistake recognised, if any
    detail, call: what was seen, and the call that shows it
    """

    property: str
    passed: bool | None
    message: str = ""
    mistake: str | None = None
    detail: str = ""
    call: str = ""


@dataclasses.dataclass(frozen=True, repr=False)
class Report:
    """The verdict on one answer.

    Its repr is its points, so that stock nbgrader reads partial credit from
    the output of the cell.

    hints: what to tell the learner about each mistake recognised, by id
    printed: what the answer wrote to stdout and stderr
    """

    exercise: str
    points: float
    max_points: float
    findings: tuple[Finding, ...] = ()
    hints: dict = dataclasses.field(default_factory=dict)
    printed: str = ""
    notes: tuple[str, ...] = ()

    @property
    def passed(self):
        """Whether every property holds."""
        return all(finding.passed for finding in self.findings)

    def __float__(self):
        return float(self.points)

    def __repr__(self):
        return repr(float(self.points))

    def __str__(self):
        return "\n".join(_text_lines(self))

    def _repr_html_(self):
        return _card(self)


def score_text(report):
    """The score in words: 1.5 of 2 points."""
    return f"{report.points:g} of {points_text(report.max_points)}"


def points_text(points):
    return f"{points:g} point{'' if points == 1 else 's'}"


def skipped(report):
    """Names of the properties that a failure leaves without meaning."""
    return ", ".join(
        finding.property
        for finding in report.findings
        if finding.passed is None
    )


def _text_lines(report):
    sign = "✓" if report.passed else "✗"
    yield f"{sign} {report.exercise}: {score_text(report)}"
    for hint in report.hints.values():
        yield from _wrapped(f"Likely cause: {hint}", "  ")
    for finding in report.findings:
        if finding.passed is not None:
            yield f"  {'✓' if finding.passed else '✗'} {finding.property}"
        if finding.passed is False:
            if finding.call:
                yield f"      {finding.call}"
            if finding.detail:
                yield from _wrapped(finding.detail)
            yield from _wrapped(finding.message)
    if skipped(report):
        yield from _wrapped(f"– not looked at yet: {skipped(report)}", "  ")
    for note in report.notes:
        yield from _wrapped(f"Note: {note}", "  ")
    if report.printed.strip():
        yield "  It printed:"
        yield textwrap.indent(report.printed.rstrip(), "      ")


def _wrapped(text, indent="      "):
    return textwrap.wrap(
        text, 76, initial_indent=indent, subsequent_indent=indent
    )


def _card(report):
    colour = GREEN if report.passed else RED if report.points else GREY
    share = report.points / report.max_points if report.max_points else 0
    cause = _box(
        BLUE,
        "Likely cause"
        if len(report.hints) < 2
        else "One of these is the likely cause",
        list(report.hints.values()),
    )
    notes = _box(GREY, "Note", report.notes)
    printed = ""
    if report.printed.strip():
        printed = (
            "<details style='margin-top:.5em'><summary>What it "
            f"printed</summary><pre style='white-space:pre-wrap'>"
            f"{html.escape(report.printed)}</pre></details>"
        )
    rows = "".join(
        _row(finding)
        for finding in report.findings
        if finding.passed is not None
    )
    later = (
        f"<div style='margin:.15em 0;opacity:.75'>– not looked at yet: "
        f"{html.escape(skipped(report))}</div>"
        if skipped(report)
        else ""
    )
    verdict = (
        "<div style='margin-top:.5em'>All properties hold. Full marks.</div>"
        if report.passed
        else ""
    )
    return (
        f"<div style='border:1px solid rgba(128,128,128,.35);border-left:4px "
        f"solid {colour};border-radius:6px;padding:.7em 1em;max-width:46em;"
        "margin:.3em 0;line-height:1.45;font-size:14px'>"
        "<div style='display:flex;flex-wrap:wrap;gap:.4em 1em;"
        "align-items:baseline'>"
        "<span style='font-family:ui-monospace,monospace;font-weight:600;"
        f"font-size:15px'>{html.escape(report.exercise)}</span>"
        f"<span>{score_text(report)}</span></div>"
        "<div style='height:4px;border-radius:2px;margin:.4em 0 .5em;"
        "background:rgba(128,128,128,.25)' aria-hidden='true'>"
        f"<div style='height:4px;border-radius:2px;width:{share:.0%};"
        f"background:{colour}'></div></div>"
        f"{cause}{rows}{later}{notes}{printed}{verdict}</div>"
    )


def _row(finding):
    sign, colour, word = {
        True: ("✓", GREEN, "holds"),
        False: ("✗", RED, "fails"),
    }[finding.passed]
    label = (
        f"<span role='img' aria-label='{word}' style='border:2px solid "
        f"{colour};border-radius:50%;box-sizing:border-box;display:"
        "inline-block;width:1.5em;line-height:1.25;text-align:center;"
        f"font-size:.8em;font-weight:700;margin-right:.5em'>{sign}"
        f"</span>{html.escape(finding.property)}"
    )
    seen = "".join(
        f"<div style='overflow-wrap:anywhere'>{html.escape(text)}</div>"
        for text in (finding.call, finding.detail)
        if text
    )
    if seen:
        seen = (
            "<div style='font-family:ui-monospace,monospace;font-size:"
            "13px;background:rgba(128,128,128,.12);border-radius:4px;"
            f"padding:.3em .6em;margin:.2em 0'>{seen}</div>"
        )
    message = (
        f"<div>{html.escape(finding.message)}</div>" if finding.message else ""
    )
    more = (
        f"<div style='margin-left:1.3em'>{seen}{message}</div>"
        if seen or message
        else ""
    )
    return f"<div style='margin:.15em 0'>{label}{more}</div>"


def _box(colour, title, texts):
    if not texts:
        return ""
    body = "".join(
        f"<div style='margin-top:.2em'>{html.escape(text)}</div>"
        for text in texts
    )
    return (
        f"<div style='border-left:3px solid {colour};padding:.3em .7em;"
        "margin:.5em 0;background:rgba(128,128,128,.10);border-radius:"
        f"0 4px 4px 0'><strong>{title}</strong>{body}</div>"
    )


def call_text(name, case):
    """A call as a learner would write it, or "" if there is none to show."""
    if not isinstance(case, dict) or not {"args", "kwargs"} <= set(case):
        return ""
    parts = [_value_text(value, case) for value in case["args"]]
    parts += [
        f"{key}={_value_text(value, case)}"
        for key, value in case["kwargs"].items()
    ]
    how = ", on non-contiguous views" if case.get("strided") else ""
    if case.get("build"):
        args, kwargs = case["build"]
        made = [
            *map(repr, args),
            *(f"{key}={value!r}" for key, value in kwargs.items()),
        ]
        method = f".{case['method']}" if case["method"] else ""
        name = f"{name}({', '.join(made)}){method}"
        how += ", in train mode" if case["mode"] == "train" else ""
    return f"{name}({', '.join(parts)}){how}"


def _value_text(value, case):
    if not isinstance(value, np.ndarray):
        return repr(value)
    floating = value.dtype.kind == "f"
    dtype = floating and case.get("dtype") or value.dtype
    if value.size > SHOWN:
        shape = "×".join(map(str, value.shape))
        return f"<{dtype}, shape {shape}>"
    text = np.array2string(
        value, separator=", ", precision=4, floatmode="maxprec_equal"
    )
    text = " ".join(text.split())
    return f"{text} ({dtype})" if floating else text


@dataclasses.dataclass(frozen=True, repr=False)
class Summary:
    """A lesson's exercises with the last report of each.

    rows: (exercise name, maximum, its last `Report` or None)
    advice: what to mend in the notebook before it is handed in, as sentences
    """

    lesson: str
    rows: tuple
    advice: tuple = ()

    @property
    def points(self):
        return sum(report.points for _, _, report in self.rows if report)

    @property
    def max_points(self):
        return sum(maximum for _, maximum, _ in self.rows)

    @property
    def next_step(self):
        """What to do next, as a sentence."""
        for name, maximum, report in self.rows:
            if report is None:
                return f"Next: answer {name} and run its check cell."
            if report.points < maximum:
                return f"Next: look at {name} again, its report says why."
        return (
            "Everything is solved. Restart the kernel, run all cells "
            "once more, save, and hand in this notebook."
        )

    def __repr__(self):
        lines = [
            f"{self.lesson}: {self.points:g} of {points_text(self.max_points)}"
        ]
        for name, maximum, report in self.rows:
            score = (
                score_text(report)
                if report
                else (f"not checked yet ({points_text(maximum)})")
            )
            sign = "✓" if report and report.passed else "·"
            lines.append(f"  {sign} {name}: {score}")
        if self.advice:
            lines.append("Before you hand in:")
            for sentence in self.advice:
                lines += _wrapped(sentence, "  ")
        return "\n".join([*lines, self.next_step])

    def _repr_html_(self):
        rows = "".join(
            f"<tr><td style='text-align:left'><code>{html.escape(name)}"
            f"</code></td><td style='text-align:right'>"
            f"{f'{report.points:g}' if report else '–'}</td>"
            f"<td style='text-align:right'>{maximum:g}</td></tr>"
            for name, maximum, report in self.rows
        )
        return (
            "<table style='font-size:14px'><thead><tr><th style='text-align:"
            "left'>Exercise</th><th>Points</th><th>of</th></tr></thead>"
            f"<tbody>{rows}<tr style='font-weight:600'><td style='text-align:"
            f"left'>{html.escape(self.lesson)}</td><td style='text-align:"
            f"right'>{self.points:g}</td><td style='text-align:right'>"
            f"{self.max_points:g}</td></tr></tbody></table>"
            f"{_box(RED, 'Before you hand in', self.advice)}"
            f"<p>{html.escape(self.next_step)}</p>"
        )
