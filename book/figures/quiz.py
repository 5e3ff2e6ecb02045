"""Questions at a chapter's end: choose an answer, and read why.

A question is Markdown with a fold for each choice, so it needs no script and
no package: it works by mouse and keyboard on a page, in JupyterLab and in
Colab, in the dark and on paper.
"""

import html
import pathlib
import re
import string
import tomllib

from IPython.display import Markdown

FOLDER = pathlib.Path(__file__).parent.parent / "assets" / "quizzes"


def questions(lesson):
    """A lesson's questions, as `book/assets/quizzes/<lesson>.toml` has them.

    returns: [{"text", "choice": [{"text", "why", "right"}, …]}, …]; texts are
        Markdown, a choice's with code and emphasis only; "right" stands only
        where it is true
    """
    path = FOLDER / f"{lesson}.toml"
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))["question"]
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from None


def ask(lesson):
    """A lesson's questions, one below the other."""
    return Markdown(
        "\n\n".join(
            _asked(number, question, f"{lesson}-{number}")
            for number, question in enumerate(questions(lesson), start=1)
        )
    )


def _asked(number, question, group):
    # A blank line ends an HTML block: what follows it is Markdown again.
    choices = (
        _folded(letter, choice, group)
        for letter, choice in zip(
            string.ascii_lowercase, question["choice"], strict=False
        )
    )
    text = f"**{number}.** {question['text'].strip()}"
    return "\n\n".join(['<div class="ta-question">', text, *choices, "</div>"])


def _folded(letter, choice, group):
    right = choice.get("right", False)
    kind, verdict = ("right", "Right.") if right else ("wrong", "No.")
    # Of details with one name, a browser opens one at a time.
    return "\n\n".join(
        [
            f'<details class="ta-choice ta-{kind}" name="{group}"><summary>'
            f"<b>{letter}</b> {_inline(choice['text'])}</summary>",
            f"**{verdict}** {choice['why'].strip()}",
            "</details>",
        ]
    )


def _inline(text):
    """HTML of a line with `code` and *emphasis*.

    Markdown is not read within a summary, or makes a paragraph of it.
    """
    made = html.escape(text.strip(), quote=False)
    made = re.sub(r"`([^`]+)`", r'<code class="literal">\1</code>', made)
    return re.sub(r"\*([^*]+)\*", r"<em>\1</em>", made)
