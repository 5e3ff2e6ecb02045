"""The troubleshooting page: chapters' rows with exercises and mistakes."""

import pathlib
import re
import tomllib

from IPython.display import Markdown

from figures.tables import exercise_link, is_exercise, released

BOOK = pathlib.Path(__file__).parent.parent


def table(lesson):
    """A chapter's "When it goes wrong", with exercises and mistakes.

    The rows stand in the chapter; `book/assets/troubleshooting.toml` says
    which exercise teaches each, and under which names the checks know it.
    """
    if not _is_here(lesson):
        return Markdown("This edition of the course leaves the lesson out.")
    known = homes().get(lesson, {})
    lines = [
        "| Symptom | Likely cause | Remedy | Exercise and mistake |",
        "|---|---|---|---|",
    ]
    for symptom, cause, remedy in rows_of(lesson):
        about = known.get(symptom, {})
        tasks = filter(is_exercise, about.get("exercises", []))
        links = ", ".join(map(exercise_link, tasks))
        names = [f"`{name}`" for name in about.get("mistakes", [])]
        where = "<br>".join(filter(None, [links, *names]))
        lines.append(f"| {symptom} | {cause} | {remedy} | {where} |")
    return Markdown("\n".join(lines))


def rows_of(lesson):
    """Symptom, cause and remedy of each row in a chapter's table."""
    text = (BOOK / f"{lesson}.md").read_text(encoding="utf-8")
    _, _, section = text.partition("\n## When it goes wrong\n")
    section = re.split(r"^## ", section, maxsplit=1, flags=re.M)[0]
    rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in section.splitlines()
        if line.startswith("|")
    ]
    return rows[2:]  # below the heading and its rule


def homes():
    """{lesson: {symptom: {"exercises": names, "mistakes": names}}}."""
    path = BOOK / "assets" / "troubleshooting.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _is_here(lesson):
    return lesson in released() and (BOOK / f"{lesson}.md").exists()
