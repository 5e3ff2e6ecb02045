"""The course's promises, kept by a command: `python -m autograder verify`.

Each promise is a function that yields, for a lesson or one exercise, what
breaks it: sentences that say what to do.
"""

import ast
import collections
import concurrent.futures
import copy
import dataclasses
import functools
import gc
import itertools
import json
import re
import sys

import numpy as np
import torch

from autograder import answers, build, pages
from autograder.checker import check_visible, look
from autograder.course import ROOT, SourceError, released_path
from autograder.diagnosis import SAME, alike, sketch
from autograder.exercise import exercises, find, lessons
from autograder.goldens import golden_is_current
from autograder.judging import (
    failing,
    failures,
    fresh_standard,
    judge,
    mistake,
    visible_standard,
)

SEEDS = 20  # draws over which a verdict must not change
DRAWS = 200  # draws over which mistakes named together must stay alike
NAMED_ALONE = 0.9  # share of a lesson's mistakes
TRAVELS = {"autograder", "numpy", "torch", *sys.stdlib_module_names}
MAX_GOLDENS = 2**20  # bytes, of all lessons together


# Promises about a lesson


def names_agree(lesson):
    """One stem, and the same exercises, in every room."""
    for room in (
        f"book/{lesson}.md",
        f"solutions/{lesson}.py",
        f"solutions/answers/{lesson}.py",
        f"autograder/checks/{lesson}.py",
    ):
        if not (ROOT / room).exists():
            yield f"{room} is missing: a lesson has one stem in every room"
    contents = (ROOT / "_toc.yml").read_text(encoding="utf-8")
    for page in (f"book/{lesson}", f"solutions/{lesson}"):
        if page not in contents:
            yield f"_toc.yml does not list {page}: add it"
    judged = list(exercises(lesson))
    told = [
        cell.metadata["exercise"]
        for cell in build.read_lesson(lesson)
        if "exercise" in cell.metadata
    ]
    if told != judged:
        yield (
            f"solutions/{lesson}.py has the exercises {told}, "
            f"autograder/checks/{lesson}.py judges {judged}: the same "
            "names in the same order are due"
        )
    for other in lessons():
        twice = set(judged) & set(exercises(other))
        if other != lesson and twice:
            yield f"{lesson} and {other} both have {sorted(twice)}: rename"


def answers_are_enough(lesson):
    """Each exercise has one oracle and at least three wrong answers."""
    known = answers.load(lesson)
    names = list(exercises(lesson))
    where = f"solutions/answers/{lesson}.py"
    oracles = {}
    for answer in known:
        if answer.exercise not in names:
            yield f"{where} answers {answer.exercise!r}, which is no exercise"
    for name in names:
        kinds = [each.kind for each in known if each.exercise == name]
        try:
            oracles[name] = answers.the_oracle(lesson, name).id
        except SourceError as error:
            yield str(error)
        if kinds.count("wrong") < 3:
            yield (
                f"{name} has {kinds.count('wrong')} wrong answers in "
                f"{where}: at least three are due"
            )
    yield from _references_among_answers(lesson, oracles)


def _references_among_answers(lesson, oracles):
    """An oracle that is the reference finds no mistake in the reference.

    oracles: {exercise: the name of its oracle}
    """
    where = f"solutions/answers/{lesson}.py"
    source = (ROOT / where).read_text(encoding="utf-8")
    for name in _imports(source):
        if name.split(".")[0] == "solutions":
            yield (
                f"{where} imports {name}: other people's answers do not use "
                "the references"
            )
    made = _bodies(source)
    due = _bodies(build.lesson_path(lesson).read_text(encoding="utf-8"))
    for name, oracle in oracles.items():
        if oracle in made and made[oracle] == due.get(name):
            yield (
                f"{name}: the oracle {oracle} is the reference itself, so it "
                "cannot find a mistake in it: write it in another way"
            )


def _bodies(source):
    """{name: statements without the docstring} of what a module defines."""
    return {
        node.name: ast.unparse(
            node.body[ast.get_docstring(node) is not None :]
        )
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }


def generated_is_current(lesson):
    """What lies in git is what `build` writes."""
    if not golden_is_current(lesson, build.lesson_goldens(lesson)):
        yield (
            f"autograder/goldens/{lesson}.npz is stale: run `make "
            "exercises` and commit it"
        )
    for path, data in build.generated([lesson]).items():
        if build.SOURCE not in path.parents:  # made on each machine
            yield from _stale(path, data)


def _stale(path, data):
    if not path.exists() or path.read_bytes() != data:
        state = "stale" if path.exists() else "missing"
        yield (
            f"{path.relative_to(ROOT)} is {state}: run `make "
            "exercises` and commit it"
        )


def stubs_fail(lesson):
    """Every stub raises NotImplementedError and scores 0."""
    namespace = {}
    for cell in _code_cells(released_path(lesson)):
        if not cell["metadata"].get("nbgrader", {}).get("grade"):
            exec("".join(cell["source"]), namespace)
    for name, exercise in exercises(lesson).items():
        report = check_visible(lesson, exercise, namespace.get(name))
        if report.points or report.findings[0].property != "attempted":
            yield (
                f"the stub of {name} is not recognised as a stub: it must "
                "raise NotImplementedError as soon as it is used"
            )


def answers_stay_hidden(lesson):
    """No released notebook or chapter holds a reference, or its import."""
    yield from _answers_in(
        released_path(lesson), ROOT / "book" / f"{lesson}.ipynb"
    )


def _answers_in(*paths):
    bodies = {
        cell.metadata["exercise"]: _statements(_solution(cell.source))
        for each in lessons()
        if build.lesson_path(each).exists()
        for cell in build.read_lesson(each)
        if "exercise" in cell.metadata
    }
    for path in paths:
        shown = path.relative_to(ROOT)
        for cell in _code_cells(path):
            source = _without_magics("".join(cell["source"]))
            for name in _imports(source):
                if name.split(".")[0] == "solutions":
                    yield f"{shown} imports {name}: an edition has no answers"
            lines = _statements(source)
            for name, body in bodies.items():
                if _contains(lines, body):
                    yield (
                        f"{shown} holds the reference of {name}: show the "
                        "idea in another form"
                    )


def checks_hold_no_answers(lesson):
    """A check imports nothing from solutions; it travels with notebooks."""
    source = (ROOT / f"autograder/checks/{lesson}.py").read_text("utf-8")
    for name in _imports(source):
        if name.split(".")[0] not in TRAVELS:
            yield (
                f"autograder/checks/{lesson}.py imports {name}: learners "
                "have torch and numpy only, and answers stay in solutions"
            )


# Promises about an exercise


def judgement_is_sound(lesson, exercise):
    """Points, names, cases and weights are such as a judgement needs."""
    name = exercise.name
    reference = references(lesson).get(name)
    if isinstance(reference, type) != (exercise.kind == "class"):
        found = "class" if isinstance(reference, type) else "function"
        yield (
            f"{name}: the reference is a {found}: give the exercise "
            f"kind={found!r}"
        )
        return
    parts = exercise.properties
    if exercise.points <= 0 or min(part.points for part in parts) < 0:
        yield f"{name}: give its properties points, none below 0"
    for twice in _twice(part.name for part in parts):
        yield f"{name}: two properties are called {twice!r}: rename one"
    inputs = exercise.visible_inputs()
    for part in parts:
        if not part.says.strip():
            yield f"{name}: the property {part.name!r} says nothing: says=..."
        for case in set(part.cases) - set(inputs):
            yield (
                f"{name}: the property {part.name!r} reads the case {case!r}, "
                f"which inputs lack; there are {', '.join(inputs)}"
            )
    want = visible_standard(lesson, exercise).want
    for case, seen in want.items() if isinstance(want, dict) else ():
        if isinstance(seen, dict) and seen.get("missing"):
            yield (
                f"{name}: the case {case!r} gives the weights "
                f"{seen['missing']}, which the oracle has not: correct the "
                "names or the shapes"
            )


def _twice(names):
    counts = collections.Counter(names)
    return [name for name, count in counts.items() if count > 1]


def right_answers_pass(lesson, exercise):
    """References and right answers get full marks, visible and fresh."""
    yield from _refusals(
        lesson, exercise, "the reference", references(lesson)[exercise.name]
    )
    for answer in answers.of(lesson, exercise.name):
        if answer.kind != "wrong":
            # An oracle may call what learners may not.
            free = (
                _unwatched(exercise) if answer.kind == "oracle" else exercise
            )
            yield from _refusals(lesson, free, answer.id, answer.object)


def _refusals(lesson, exercise, label, object):
    for where, report in _reports(lesson, exercise, object):
        if report.points != report.max_points or not report.passed:
            broken = next(each for each in report.findings if not each.passed)
            yield (
                f"{exercise.name}: the right answer {label} gets "
                f"{report.points:g} of {report.max_points:g} on {where}: "
                f"{broken.property}. {broken.call} {broken.detail}"
            )
            return


def wrong_answers_fail(lesson, exercise):
    """Each wrong answer loses points and is named, whatever the draw."""
    verdicts, broken = {}, {}
    for where, reports in _reports_on_mistakes(lesson, exercise):
        for id, report in reports.items():
            if report.passed or report.points >= report.max_points:
                told = (
                    f"{exercise.name}: the wrong answer {id} gets full marks",
                    "add an input that shows the mistake",
                )
                broken.setdefault(told, []).append(where)
            elif id not in report.hints:
                named = ", ".join(report.hints) or "nothing"
                told = (
                    f"{exercise.name}: {id} is not named",
                    f"the report names {named}",
                )
                broken.setdefault(told, []).append(where)
            verdict = f"{report.points:g} points, {', '.join(report.hints)}"
            verdicts.setdefault(id, {}).setdefault(verdict, where)
    for (what, remedy), (first, *more) in broken.items():
        others = f" and {len(more)} more draws" if more else ""
        yield f"{what} on {first}{others}: {remedy}"
    for id, told in verdicts.items():
        if len(told) > 1:
            shown = "; ".join(f"{told[each]}: {each}" for each in told)
            yield (
                f"{exercise.name}: the verdict on {id} depends on the draw "
                f"({shown}): make the inputs show the mistake always"
            )


def _reports_on_mistakes(lesson, exercise):
    """(where, {wrong answer: its report}) on visible and on fresh inputs."""
    wrong = answers.of(lesson, exercise.name, "wrong")
    known = _mistakes_seen(lesson, exercise)
    yield "visible inputs", {id: report for id, (_, report) in known.items()}
    exercise = _unwatched(exercise)
    for seed in range(SEEDS):
        standard = fresh_standard(lesson, exercise, seed)
        looks, results, known = {}, {}, {}
        for each in wrong:
            looks[each.id] = look(exercise, each.object, standard.inputs)
            seen = looks[each.id]["seen"]
            results[each.id] = failures(
                exercise, seen, standard.want, standard.inputs
            )
            known[each.id] = mistake(
                exercise, each.hint, seen, results[each.id]
            )
        # Made from these looks, instead of by looking once more.
        standard = dataclasses.replace(
            standard, mistakes=functools.partial(dict, known)
        )
        yield (
            f"seed {seed}",
            {
                id: judge(
                    exercise,
                    looks[id],
                    standard,
                    results=results[id],
                    known=known[id],
                )
                for id in looks
            },
        )


def empty_answers_get_nothing(lesson, exercise):
    """Zeros, and a copy of the input, score 0."""
    if exercise.kind != "function":
        return
    (oracle,) = (
        each.object
        for each in answers.of(lesson, exercise.name)
        if each.kind == "oracle"
    )
    for label, object in (
        (
            "an answer of zeros",
            # On copies, or a model would be changed as it should be.
            lambda *args, **kwargs: _zeros(
                oracle(*copy.deepcopy(args), **copy.deepcopy(kwargs))
            ),
        ),
        (
            "a copy of the first argument",
            lambda *args, **kwargs: _copied(args[0]),
        ),
    ):
        report = check_visible(lesson, exercise, object)
        if report.points:
            yield (
                f"{exercise.name}: {label} gets {report.points:g} points: "
                "make a property of ordinary values a gate"
            )


def properties_are_needed(lesson, exercise):
    """A property that alone catches no mistake says why it is there."""
    alone = {
        name
        for names in matrix(lesson, exercise).values()
        if len(names) == 1
        for name in names
    }
    for part in exercise.properties:
        if part.name not in alone and not part.because:
            yield (
                f"{exercise.name}: the property {part.name!r} is sole "
                "catcher of no wrong answer: add one, or a because="
            )


def mistakes_alike(lesson, exercise):
    """Mistakes named together cannot be told apart by any of 200 draws."""
    objects = {
        each.id: each.object for each in answers.of(lesson, exercise.name)
    }
    pairs = sorted(_pairs(lesson, exercise))
    exercise = _unwatched(exercise)
    for seed in range(DRAWS):
        if not pairs:
            return
        standard = fresh_standard(lesson, exercise, seed)
        sketches = {
            name: sketch(
                exercise,
                look(exercise, objects[name], standard.inputs)["seen"],
            )
            for name in {name for pair in pairs for name in pair}
        }
        for one, other in pairs:
            far = np.linalg.norm(sketches[one] - standard.centres.whole)
            apart = np.linalg.norm(sketches[one] - sketches[other])
            if apart > SAME * far:
                yield (
                    f"{exercise.name}: {one} and {other} are named "
                    f"together, but seed {seed} tells them apart: choose "
                    "inputs that always do"
                )
                pairs = [pair for pair in pairs if pair != (one, other)]


def _pairs(lesson, exercise):
    standard = visible_standard(lesson, exercise)
    return alike(standard.centres, standard.mistakes())


# Promises about the course


def most_mistakes_are_named_alone():
    """At least nine in ten of a lesson's mistakes are named alone."""
    for lesson in lessons():
        alone = []
        for exercise in exercises(lesson).values():
            shared = {
                name for pair in _pairs(lesson, exercise) for name in pair
            }
            alone += [
                each.id not in shared
                for each in answers.of(lesson, exercise.name)
                if each.kind == "wrong"
            ]
        if sum(alone) < NAMED_ALONE * len(alone):
            together = "; ".join(
                " and ".join(pair)
                for exercise in exercises(lesson).values()
                for pair in sorted(_pairs(lesson, exercise))
            )
            yield (
                f"{lesson}: only {sum(alone)} of {len(alone)} mistakes "
                "are named alone: choose inputs that tell these apart: "
                f"{together}"
            )


def goldens_stay_small():
    """All goldens together weigh less than 1 MiB."""
    total = sum(
        path.stat().st_size
        for path in (ROOT / "autograder" / "goldens").glob("*.npz")
    )
    if total > MAX_GOLDENS:
        yield f"goldens weigh {total:,} bytes: make inputs smaller"


def appendices_are_current():
    """An appendix, which is no lesson, keeps a chapter's promises."""
    for chapter in sorted((ROOT / "book").glob("appx_*.md")):
        edition = chapter.with_suffix(".ipynb")
        made = pages.colab_edition(chapter)
        yield from _stale(edition, build.notebook_bytes(made))
        if edition.exists():
            yield from _answers_in(edition)


def readme_is_current():
    """The README's table of lessons is what `build` writes."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    if build.readme(text) != text:
        yield "README.md's table of lessons is stale: run `make exercises`"


OF_LESSONS = (
    names_agree,
    answers_are_enough,
    generated_is_current,
    stubs_fail,
    answers_stay_hidden,
    checks_hold_no_answers,
)
OF_EXERCISES = (
    judgement_is_sound,
    right_answers_pass,
    wrong_answers_fail,
    empty_answers_get_nothing,
    properties_are_needed,
    mistakes_alike,
)
# Of a lesson's promises, what is quick and may concern a single exercise.
QUICK = (names_agree, answers_are_enough, stubs_fail)
OF_COURSE = (
    most_mistakes_are_named_alone,
    goldens_stay_small,
    appendices_are_current,
    readme_is_current,
)


def main(only=(), show_matrix=False):
    """Check every promise; print what breaks it.

    only: lessons or exercises to look at, by default everything
    returns: the number of broken promises
    """
    unknown = [
        name for name in only if name not in lessons() and not find(name)
    ]
    if unknown:
        print(
            f"{unknown[0]} is neither a lesson nor an exercise; the "
            f"lessons are {', '.join(lessons())}"
        )
        return 1
    if show_matrix:
        _print_matrix(only)
        return 0
    torch.set_num_threads(1)
    touched = {lesson for lesson, _ in _chosen(only)}
    jobs = [
        (promise.__name__, (lesson,))
        for lesson in lessons()
        if not only or lesson in touched
        for promise in (OF_LESSONS if not only or lesson in only else QUICK)
    ]
    if not only:
        jobs += [(promise.__name__, ()) for promise in OF_COURSE]
    of_exercises = [
        (promise.__name__, (name,))
        for _, name in _chosen(only)
        for promise in OF_EXERCISES
    ]
    broken = 0
    with concurrent.futures.ProcessPoolExecutor(initializer=_settle) as pool:
        kept = itertools.chain(
            pool.map(_kept, *_columns(jobs)),
            # One process keeps all promises of an exercise: see `_seen`.
            pool.map(
                _kept, *_columns(of_exercises), chunksize=len(OF_EXERCISES)
            ),
        )
        jobs += of_exercises
        start, end = ("\r", "\n") if sys.stderr.isatty() else ("", "")
        for done, told in enumerate(kept, start=1):
            _progress(done, len(jobs))
            for text in told:
                print(f"{start}✗ {text}")
            broken += bool(told)
    print(end=end, file=sys.stderr)
    print(f"{len(jobs) - broken} promises kept, {broken} broken")
    return broken


def _progress(done, count):
    """A line that is written over, or in a log now and then a line."""
    line = f"{done} of {count} promises"
    if sys.stderr.isatty():
        print(f"\r{line}", end="", file=sys.stderr, flush=True)
    elif done % 50 == 0:
        print(line, file=sys.stderr, flush=True)


def _settle():
    """Look for garbage less often, and not among what is there for good.

    Modules are full of cycles, and that search takes a sixth of the time.
    """
    gc.freeze()
    gc.set_threshold(50_000, 50, 50)


def _columns(jobs):
    return zip(*jobs, strict=True) if jobs else ((), ())


def _chosen(only):
    for lesson in lessons():
        for name in exercises(lesson):
            if not only or lesson in only or name in only:
                yield lesson, name


def _kept(name, args):
    promise = globals()[name]
    try:
        return list(promise(*find(*args) if promise in OF_EXERCISES else args))
    except Exception as error:  # a broken file breaks its promises only
        about = f"{name}, {', '.join(args)}"
        if isinstance(error, SyntaxError) and error.filename:
            # Its text has the file's name without the folder.
            about = f"{error.filename}, line {error.lineno}"
        return [f"{about}: {type(error).__name__}: {error}"]


def matrix(lesson, exercise):
    """{wrong answer: the properties that it fails} on visible inputs."""
    standard = visible_standard(lesson, exercise)
    return {
        id: failing(failures(exercise, seen, standard.want, standard.inputs))
        for id, (seen, _) in _mistakes_seen(lesson, exercise).items()
    }


def _mistakes_seen(lesson, exercise):
    """{wrong answer: (observations, report)} on visible inputs."""
    wrong = tuple(answers.of(lesson, exercise.name, "wrong"))
    return _seen(lesson, exercise, wrong)


@functools.lru_cache(maxsize=1)  # promises about one exercise come together
def _seen(lesson, exercise, wrong):
    standard = visible_standard(lesson, exercise)
    found = {}
    for each in wrong:
        observation = look(exercise, each.object, standard.inputs)
        report = judge(exercise, observation, standard)
        found[each.id] = observation["seen"], report
    return found


def _print_matrix(only):
    for lesson, name in _chosen(only):
        print(f"{lesson} {name}")
        caught = matrix(lesson, exercises(lesson)[name])
        for id, names in caught.items():
            print(f"  {id:44} {', '.join(names)}")


def _reports(lesson, exercise, object):
    """(where, report) on the visible inputs and on fresh ones."""
    yield "visible inputs", check_visible(lesson, exercise, object)
    exercise = _unwatched(exercise)
    for seed in range(SEEDS):
        standard = fresh_standard(lesson, exercise, seed)
        observation = look(exercise, object, standard.inputs)
        yield f"seed {seed}", judge(exercise, observation, standard)


def _unwatched(exercise):
    """The exercise without its bans, which the visible inputs have tried.

    Watching every torch call takes more time than the calls themselves.
    """
    return dataclasses.replace(exercise, forbids=())


@functools.cache
def references(lesson):
    """What a lesson's solutions define, by name."""
    path = ROOT / "solutions" / f"{lesson}.py"
    namespace = {"__name__": f"solutions.{lesson}"}
    exec(compile(path.read_text(encoding="utf-8"), path, "exec"), namespace)
    return namespace


def _zeros(value):
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    if isinstance(value, np.ndarray):
        return np.zeros_like(value)
    if isinstance(value, list | tuple):
        return [_zeros(part) for part in value]
    if isinstance(value, dict):
        return {key: _zeros(part) for key, part in value.items()}
    return type(value)() if isinstance(value, int | float | str) else value


def _copied(value):
    if isinstance(value, torch.Tensor):
        return value.clone()
    return np.array(value) if isinstance(value, np.ndarray) else value


def _code_cells(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def _solution(source):
    return "\n".join(
        re.findall(
            r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", source, re.DOTALL
        )
    )


def _statements(source):
    """Lines of code without layout and comments."""
    lines = (re.sub(r"\s+|#.*", "", line) for line in source.split("\n"))
    return [line for line in lines if line]


def _contains(lines, body):
    # One line such as `return x` is no answer.
    return len(body) > 1 and any(
        lines[start : start + len(body)] == body
        for start in range(len(lines) - len(body) + 1)
    )


def _without_magics(source):
    return "\n".join(
        line
        for line in source.split("\n")
        if not line.lstrip().startswith(("%", "!"))
    )


def _imports(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
