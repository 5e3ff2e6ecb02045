"""Each promise is broken by hand once, and says what to do."""

import dataclasses
import functools
import shutil
import sys
import types

import pytest
import torch

from autograder import answers, build, course, verify
from autograder.course import ROOT, SourceError
from autograder.exercise import exercises, find

LESSON = "ch1_self_attention"
FILES = (
    "README.md",
    "_toc.yml",
    "_config.yml",
    "nbgrader_config.py",
    "book/references.bib",
    f"book/{LESSON}.md",
    f"solutions/{LESSON}.py",
    f"solutions/answers/{LESSON}.py",
    f"autograder/checks/{LESSON}.py",
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A course of one lesson, all of it current."""
    folder = tmp_path_factory.mktemp("course")
    for name in FILES:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, path)
    with pytest.MonkeyPatch.context() as patch:
        for module in (verify, build, course):
            patch.setattr(module, "ROOT", folder)
        for module in (verify, build):
            patch.setattr(module, "lessons", lambda: (LESSON,))
        # Goldens have tests of their own, and take long to make.
        patch.setattr(build, "lesson_goldens", lambda lesson: {})
        patch.setattr(verify, "golden_is_current", lambda *given: True)
        patch.setattr(course, "stamp", course.stamp.__wrapped__)
        patch.setattr(build, "stamp", course.stamp)
        made = build.generated([LESSON])
        # Once is enough: the sources stay as they are.
        patch.setattr(build, "generated", lambda only: made)
        for path, data in made.items():
            if build.SOURCE not in path.parents:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        readme = folder / "README.md"
        readme.write_text(build.readme(readme.read_text(encoding="utf-8")))
        yield folder


@pytest.fixture
def edit(copy):
    """Change a file of the copy until the test ends."""
    before = {}

    def change(name, old, new):
        path = copy / name
        text = path.read_text(encoding="utf-8")
        assert old in text
        before.setdefault(path, text)
        path.write_text(text.replace(old, new), encoding="utf-8")

    yield change
    for path, text in before.items():
        path.write_text(text, encoding="utf-8")


def told(promise, *about):
    """What breaks a promise, as one text."""
    return "\n".join(promise(*about))


FAST = [
    each
    for each in verify.OF_LESSONS
    if each.__name__ not in ("answers_are_enough",)
]


@pytest.mark.parametrize("promise", FAST, ids=lambda each: each.__name__)
def test_a_sound_lesson_breaks_no_promise(copy, promise):
    assert told(promise, LESSON) == ""


def test_a_room_without_the_lesson(copy, edit):
    path = copy / f"book/{LESSON}.md"
    text = path.read_text(encoding="utf-8")
    path.unlink()
    try:
        said = told(verify.names_agree, LESSON)
    finally:
        path.write_text(text, encoding="utf-8")
    assert f"book/{LESSON}.md is missing" in said


def test_a_page_that_the_contents_lack(edit):
    edit("_toc.yml", f"solutions/{LESSON}", "solutions/other")
    assert f"does not list solutions/{LESSON}: add it" in told(
        verify.names_agree, LESSON
    )


def test_a_name_that_differs_between_rooms(edit):
    edit(f"solutions/{LESSON}.py", 'exercise="softmax"', 'exercise="sofmax"')
    said = told(verify.names_agree, LESSON)
    assert "'sofmax'" in said and "the same names" in said


def test_a_name_that_two_lessons_have(copy, monkeypatch):
    monkeypatch.setattr(verify, "lessons", lambda: (LESSON, "ch9_other"))
    monkeypatch.setattr(verify, "exercises", lambda lesson: exercises(LESSON))
    assert "rename" in told(verify.names_agree, LESSON)


def fake(kind, id="f", exercise="padding_mask", object=None):
    return answers.Answer(exercise, kind, id, object, "evidence", "a hint")


@pytest.mark.parametrize(
    "made, said",
    [
        ([], "0 oracles"),
        ([fake("oracle")] * 2 + [fake("wrong")] * 3, "2 oracles"),
        ([fake("oracle")] + [fake("wrong")] * 2, "2 wrong answers"),
        (
            [fake("oracle")]
            + [fake("wrong")] * 3
            + [fake("right", exercise="pading_mask")],
            "'pading_mask', which is no exercise",
        ),
    ],
)
def test_answers_that_are_missing_or_of_no_exercise(monkeypatch, made, said):
    one = {"padding_mask": exercises(LESSON)["padding_mask"]}
    monkeypatch.setattr(verify, "exercises", lambda lesson: one)
    monkeypatch.setattr(answers, "load", lambda lesson: made)
    assert said in told(verify.answers_are_enough, LESSON)


def test_an_answer_says_where_it_was_seen_and_what_to_read(monkeypatch):
    def twin(lengths, T):
        return lengths

    for how, said in (
        ({"hint": " ", "evidence": "seen"}, "has no hint"),
        ({"hint": "read", "evidence": ""}, "has no evidence"),
    ):
        with pytest.raises(SourceError, match=said):
            answers.wrong("padding_mask", **how)(twin)
    marked = answers.right("padding_mask", evidence="seen")
    monkeypatch.setattr(sys.modules[__name__], "twin", marked(twin), False)
    with pytest.raises(SourceError, match="the name of another one"):
        marked(lambda_named("twin"))


def lambda_named(name):
    def answer(lengths, T):
        return lengths

    answer.__name__ = name
    return answer


def test_there_is_one_oracle(monkeypatch):
    monkeypatch.setattr(answers, "load", lambda lesson: [fake("oracle")] * 2)
    with pytest.raises(SourceError, match="padding_mask has 2 oracles"):
        answers.the_oracle(LESSON, "padding_mask")


def test_an_oracle_that_is_the_reference(edit):
    reference = """positions = torch.arange(T, device=lengths.device)
    return positions < lengths[:, None, None, None]
"""
    path = f"solutions/answers/{LESSON}.py"
    text = (ROOT / path).read_text(encoding="utf-8")
    _, _, rest = text.partition("def padding_mask_lists(lengths, T):\n    ")
    oracle, _, _ = rest.partition("\n\n")
    edit(path, oracle, reference.rstrip())
    said = told(verify.answers_are_enough, LESSON)
    assert (
        "padding_mask: the oracle padding_mask_lists is the reference" in said
    )


def test_answers_that_import_references(edit):
    path = f"solutions/answers/{LESSON}.py"
    edit(
        path,
        "import itertools\n",
        f"import itertools\nimport solutions.{LESSON}\n",
    )
    assert f"{path} imports solutions" in told(
        verify.answers_are_enough, LESSON
    )


def test_a_stale_notebook(edit):
    edit(f"exercises/{LESSON}/{LESSON}.ipynb", "softmax", "hardmax")
    said = told(verify.generated_is_current, LESSON)
    assert "is stale: run `make exercises` and commit it" in said


def test_a_missing_notebook(copy):
    path = copy / f"book/{LESSON}.ipynb"
    data = path.read_bytes()
    path.unlink()
    try:
        said = told(verify.generated_is_current, LESSON)
    finally:
        path.write_bytes(data)
    assert f"book/{LESSON}.ipynb is missing: run `make exercises`" in said


def test_a_stale_golden(copy, monkeypatch):
    monkeypatch.setattr(verify, "golden_is_current", lambda *given: False)
    said = told(verify.generated_is_current, LESSON)
    assert f"goldens/{LESSON}.npz is stale: run `make exercises`" in said


def test_a_stub_that_does_not_say_that_it_is_one(edit):
    edit(
        f"exercises/{LESSON}/{LESSON}.ipynb",
        "raise NotImplementedError",
        "return None",
    )
    said = told(verify.stubs_fail, LESSON)
    assert "the stub of softmax is not recognised" in said


def test_a_reference_in_a_chapter(edit):
    inside = (
        '    positions = torch.arange(T, device=lengths.device)  # all\\n",\n'
        '    "    return positions <  lengths[:, None, None, None]'
    )
    path = f"book/{LESSON}.ipynb"
    edit(path, "import importlib.util", f'if True:\\n",\n    "{inside}')
    said = told(verify.answers_stay_hidden, LESSON)
    assert "holds the reference of padding_mask" in said
    assert "show the idea in another form" in said


@pytest.mark.parametrize(
    "line",
    [
        "from solutions.ch1_self_attention import softmax",
        "import solutions.ch1_self_attention as s",
        "import math, solutions",
    ],
)
@pytest.mark.parametrize(
    "path", [f"book/{LESSON}.ipynb", f"exercises/{LESSON}/{LESSON}.ipynb"]
)
def test_an_import_of_solutions(edit, path, line):
    edit(path, "import importlib.util", line)
    assert "an edition has no answers" in told(
        verify.answers_stay_hidden, LESSON
    )


@pytest.mark.parametrize(
    "line",
    [
        "from solutions import ch1_self_attention",
        "import scipy.special",
        "from transformers import GPT2Model",
    ],
)
def test_a_check_that_imports_what_learners_lack(edit, line):
    edit(
        f"autograder/checks/{LESSON}.py",
        "import numpy as np",
        f"import numpy as np\n{line}",
    )
    assert "learners have torch and numpy only" in told(
        verify.checks_hold_no_answers, LESSON
    )


# One exercise


@pytest.fixture
def padding(monkeypatch):
    """padding_mask with answers of the test's own, over three seeds."""
    monkeypatch.setattr(verify, "SEEDS", 3)
    monkeypatch.setattr(verify, "DRAWS", 3)
    lesson, exercise = find("padding_mask")
    known = answers.of(lesson, "padding_mask")

    def use(*extra, drop=(), **changes):
        made = [each for each in known if each.id not in drop] + list(extra)
        monkeypatch.setattr(
            answers,
            "of",
            lambda lesson, name, *kinds: [
                each for each in made if not kinds or each.kind in kinds
            ],
        )
        return lesson, dataclasses.replace(exercise, **changes)

    return use


@pytest.mark.parametrize(
    "promise",
    [
        verify.judgement_is_sound,
        verify.right_answers_pass,
        verify.wrong_answers_fail,
        verify.empty_answers_get_nothing,
        verify.properties_are_needed,
        verify.mistakes_alike,
    ],
    ids=lambda each: each.__name__,
)
def test_a_sound_exercise_breaks_no_promise(padding, promise):
    assert told(promise, *padding()) == ""


def test_a_judgement_with_a_fault_in_its_form(padding):
    lesson, sound = padding()
    first, *others = sound.properties
    for change, said in (
        ({"points": -1}, "none below 0"),
        ({"says": " "}, "says nothing"),
        ({"name": others[0].name}, "two properties are called"),
        ({"cases": ("no such",)}, "reads the case 'no such'"),
    ):
        parts = (dataclasses.replace(first, **change), *others)
        about = padding(properties=parts)
        assert said in told(verify.judgement_is_sound, *about)
    about = padding(kind="class")
    assert "the reference is a function" in told(
        verify.judgement_is_sound, *about
    )


def test_weights_of_a_case_that_no_parameter_has(monkeypatch):
    lesson, exercise = find("RMSNorm")
    standard = verify.visible_standard(lesson, exercise)
    first = next(iter(standard.want))
    monkeypatch.setattr(
        verify, "references", lambda lesson: {"RMSNorm": torch.nn.RMSNorm}
    )
    want = {**standard.want, first: {"missing": ["wieght"]}}
    monkeypatch.setattr(
        verify,
        "visible_standard",
        lambda *about: dataclasses.replace(standard, want=want),
    )
    said = told(verify.judgement_is_sound, lesson, exercise)
    assert first in said and "'wieght'" in said


def off_by_one(lengths, T):
    at = torch.arange(T, device=lengths.device)
    return at <= lengths[:, None, None, None]


def correct(lengths, T):
    at = torch.arange(T, device=lengths.device)
    return at < lengths[:, None, None, None]


def test_a_right_answer_that_fails(padding):
    about = padding(fake("right", "oddly_right", object=off_by_one))
    said = told(verify.right_answers_pass, *about)
    assert "the right answer oddly_right gets 0 of 2" in said
    assert "real positions" in said


def test_a_reference_that_fails(padding, monkeypatch):
    about = padding()
    monkeypatch.setattr(
        verify, "references", lambda lesson: {"padding_mask": off_by_one}
    )
    assert "the reference gets 0 of 2" in told(
        verify.right_answers_pass, *about
    )


def test_a_mistake_that_passes(padding):
    about = padding(fake("wrong", "not_wrong", object=correct))
    said = told(verify.wrong_answers_fail, *about)
    assert "not_wrong gets full marks" in said
    assert "add an input that shows the mistake" in said


def test_a_mistake_that_is_not_named(padding, monkeypatch):
    monkeypatch.setattr(verify, "_reports_on_mistakes", unnamed)
    said = told(verify.wrong_answers_fail, *padding())
    assert "padding_mask_one_too_many is not named" in said


def unnamed(lesson, exercise):
    report = verify.check_visible(lesson, exercise, off_by_one)
    report = dataclasses.replace(report, hints={})
    yield "visible inputs", {"padding_mask_one_too_many": report}


def test_a_verdict_that_depends_on_the_draw(padding):
    def sometimes(lengths, T):
        made = correct(lengths, T)
        # T = 7 is drawn lengths only.
        if T == 7 and lengths.sum() % 2:
            return ~made
        return off_by_one(lengths, T)

    about = padding(fake("wrong", "sometimes", object=sometimes))
    said = told(verify.wrong_answers_fail, *about)
    assert "sometimes" in said


def test_zeros_that_score(padding):
    about = padding()
    _, exercise = about
    easy = tuple(
        dataclasses.replace(part, gate=False, judge=lambda *given: None)
        if part.name == "real positions"
        else part
        for part in exercise.properties
    )
    about = about[0], dataclasses.replace(exercise, properties=easy)
    said = told(verify.empty_answers_get_nothing, *about)
    assert "an answer of zeros gets" in said
    assert "make a property of ordinary values a gate" in said


def test_a_property_that_nobody_needs(padding):
    about = padding()
    _, exercise = about
    spare = dataclasses.replace(
        exercise.properties[0], name="spare", because="", gate=False
    )
    about = (
        about[0],
        dataclasses.replace(
            exercise, properties=(*exercise.properties, spare)
        ),
    )
    said = told(verify.properties_are_needed, *about)
    assert "'spare' is sole catcher of no wrong answer: add one" in said


def rarely(lengths, T):
    """The off-by-one, but for inputs that are not the visible ones."""
    visible = find("padding_mask")[1].visible_inputs()
    known = [one["args"][0].tolist() for one in visible.values()]
    if lengths.tolist() in known:
        return off_by_one(lengths, T)
    return correct(lengths, T)


def test_mistakes_named_together_that_a_draw_tells_apart(padding, monkeypatch):
    about = padding(
        fake("wrong", "a_one", object=off_by_one),
        fake("wrong", "b_two", object=rarely),
    )
    monkeypatch.setattr(verify, "_pairs", lambda *given: [("a_one", "b_two")])
    said = told(verify.mistakes_alike, *about)
    assert "seed 0 tells them apart" in said
    assert "choose inputs that always do" in said


# The course


def test_too_many_mistakes_that_look_alike(copy, monkeypatch):
    one = {"padding_mask": exercises(LESSON)["padding_mask"]}
    monkeypatch.setattr(verify, "exercises", lambda lesson: one)
    monkeypatch.setattr(
        verify,
        "_pairs",
        lambda *given: [
            ("padding_mask_one_too_many", "padding_mask_one_too_few"),
            ("padding_mask_left", "padding_mask_inverted"),
        ],
    )
    said = told(verify.most_mistakes_are_named_alone)
    assert "choose inputs that tell these apart" in said
    assert "padding_mask_left and padding_mask_inverted" in said


def test_goldens_that_grow(copy):
    folder = copy / "autograder" / "goldens"
    folder.mkdir(exist_ok=True)
    assert told(verify.goldens_stay_small) == ""
    (folder / "big.npz").write_bytes(b"x" * (verify.MAX_GOLDENS + 1))
    try:
        assert "make inputs smaller" in told(verify.goldens_stay_small)
    finally:
        (folder / "big.npz").unlink()


def test_a_wrong_point_table_in_the_readme(copy, edit):
    assert told(verify.readme_is_current) == ""
    edit("README.md", "| Together |", "| Together | 1")
    assert "stale: run `make exercises`" in told(verify.readme_is_current)


# The command


def test_an_unknown_name_is_told(capsys):
    assert verify.main(["sofmax"]) == 1
    assert "neither a lesson nor an exercise" in capsys.readouterr().out


class Inline:
    """An executor without processes, so that patches hold in it."""

    def __init__(self, initializer):
        del initializer  # it would change how this process looks for garbage

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False

    @staticmethod
    def map(function, *columns, chunksize=1):
        return map(function, *columns)


@pytest.fixture
def inline(monkeypatch):
    monkeypatch.setattr(
        verify,
        "concurrent",
        types.SimpleNamespace(
            futures=types.SimpleNamespace(ProcessPoolExecutor=Inline)
        ),
    )
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)


def test_broken_promises_are_printed_and_counted(inline, monkeypatch, capsys):
    def kept(name, args):
        return ["do this"] if name == "wrong_answers_fail" else []

    monkeypatch.setattr(verify, "_kept", kept)
    assert verify.main(["padding_mask"]) == 1
    out = capsys.readouterr().out
    assert "✗ do this" in out and "8 promises kept, 1 broken" in out


def test_a_broken_file_breaks_its_promises_only(monkeypatch):
    def broken(lesson):
        raise SyntaxError("line 3")

    broken = functools.wraps(verify.names_agree)(broken)
    monkeypatch.setattr(verify, "names_agree", broken)
    (said,) = verify._kept("names_agree", (LESSON,))
    assert "names_agree" in said and "line 3" in said


def test_a_syntax_error_is_told_with_its_file(monkeypatch):
    def broken(lesson):
        compile("1 +", "autograder/checks/some.py", "exec")

    broken = functools.wraps(verify.names_agree)(broken)
    monkeypatch.setattr(verify, "names_agree", broken)
    (said,) = verify._kept("names_agree", (LESSON,))
    assert "autograder/checks/some.py, line 1" in said


def test_the_matrix_shows_which_property_catches_which_mistake(capsys):
    assert verify.main(["padding_mask"], show_matrix=True) == 0
    out = capsys.readouterr().out
    line = next(
        line for line in out.split("\n") if "padding_mask_one_too_many" in line
    )
    assert "real positions" in line
