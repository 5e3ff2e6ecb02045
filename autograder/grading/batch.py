"""A whole class: what arrived is graded, recorded and told, whatever is in it.

Submissions are graded by threads that share a warm process, or by the workers
of a Dask cluster, with the same code. This process alone writes results, one
submission after the other, so a batch can be stopped and taken up again.
"""

import atexit
import concurrent.futures
import contextlib
import dataclasses
import errno
import fcntl
import functools
import os
import pathlib
import sqlite3
import sys
import threading
import time

from autograder.grading import importing, recorded_seed
from autograder.grading.intake import arrivals
from autograder.grading.records import (
    Records,
    as_it_stands,
    fingerprint,
    key_of,
    problem,
    record,
    write_atomically,
)
from autograder.grading.released import released
from autograder.grading.repair import rebuild
from autograder.grading.runner import grade, prepare
from autograder.grading.sandbox import Limits
from autograder.grading.worker import Warm

AHEAD = 3  # submissions a worker that wait for it


@dataclasses.dataclass(frozen=True)
class Settings:
    """What every worker of a batch has to know.

    lessons: names of those that the batch has notebooks of
    """

    seed: str
    limits: Limits = Limits()
    require_sandbox: bool = False
    lessons: tuple[str, ...] = ()


_lock = threading.Lock()
_warms = []  # all that `_warm` has made


class StoppedError(RuntimeError):
    """The batch is being stopped: no more notebooks are run."""


class _Warm(Warm):
    """A warm process that notebooks do not start again once it is stopped."""

    _stopped = False

    def begin(self, launched=None):
        """As `start`, also after `stop`."""
        self._stopped = False
        self.start(launched)

    def stop(self):
        """End it, and at once whatever notebooks run in it."""
        self._stopped = True
        self.kill()

    def _be_ready(self):
        if self._stopped:
            raise StoppedError("the batch is being stopped")
        super()._be_ready()


@functools.cache
def _warm(limits, require_sandbox, lessons):
    warm = _Warm(limits, require_sandbox, lessons)
    atexit.register(warm.close)
    _warms.append(warm)
    return warm


def warm_process(settings):
    """This process's warm process, started if need be."""
    with _lock:
        for other in _warms:  # a worker of a cluster sees many batches
            other.rest()
        return _warm(
            settings.limits, settings.require_sandbox, settings.lessons
        )


@functools.cache
def _prepared(name, seed):
    prepare(released(name), seed)


def grade_one(arrival, settings):
    """The record of one submission; whatever is in it, this returns."""
    if arrival.problem:
        return problem(arrival)
    start = time.monotonic()
    try:
        lesson = released(arrival.lesson)
        warm = warm_process(settings)
        with _lock:
            _prepared(arrival.lesson, settings.seed)
        rebuilt = rebuild(lesson, arrival.submitted)
        reports, outputs, repairs = grade(warm, rebuilt.cells, settings.seed)
        repairs += newer_python(arrival.submitted.python, outputs)
    except Exception as error:
        return problem(
            arrival,
            (
                f"the grader itself failed on it ({type(error).__name__}: "
                f"{error}). Nothing was recorded; the others are not "
                "concerned."
            ),
        )
    return record(
        arrival,
        lesson,
        rebuilt.cells,
        (reports, outputs, [*rebuilt.repairs, *repairs]),
        time.monotonic() - start,
    )


class BusyError(RuntimeError):
    """Two batches would write to one folder."""


class GradebookError(RuntimeError):
    """The gradebook cannot be read; the text says what to do."""


class NoRoomError(RuntimeError):
    """The disk is full; the text says what to do."""


@contextlib.contextmanager
def _alone(folder):
    """Keep other batches out of a folder while this one writes to it."""
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BusyError(
                f"Another batch is writing to {folder}: wait for it, or "
                "choose another folder with --out."
            ) from None
        yield


@contextlib.contextmanager
def _room(folder):
    """Say that the disk is full where that is why something fails.

    raises NoRoomError: in its place
    """
    try:
        yield
    except Exception as error:
        if not _is_full(error):
            raise
        raise NoRoomError(
            f"The disk is full, so results cannot be written to {folder}: "
            "make room there, and give the same command again; it goes on "
            "from here."
        ) from error


def _is_full(error):
    """Whether an error, from Python or SQLite, is for want of room."""
    number = getattr(error, "errno", None)
    return number in (errno.ENOSPC, errno.EDQUOT) or (
        "disk is full" in str(error)
    )


def results_in(path):
    """The (student, lesson) that nbgrader's gradebook has results of.

    Without nbgrader, whose import takes a second.

    raises GradebookError: if it is damaged, or locked for five seconds
    """
    if not path.exists():
        return set()
    try:
        with contextlib.closing(sqlite3.connect(path)) as book:
            (sound,) = book.execute("PRAGMA quick_check(1)").fetchone()
            if sound != "ok":
                raise sqlite3.DatabaseError(sound)
            return set(
                book.execute(
                    "SELECT submitted.student_id, assignment.name "
                    "FROM submitted_assignment AS submitted JOIN assignment "
                    "ON assignment.id = submitted.assignment_id"
                )
            )
    except sqlite3.Error as error:
        remedy = (
            "wait for the program that is writing to it"
            if "locked" in str(error)
            else "put back a copy of it, or move it away and grade "
            "everything again without the scores and comments that were "
            "given by hand"
        )
        raise GradebookError(
            f"{path} cannot be read ({error}): {remedy}."
        ) from None


def newer_python(version, outputs):
    """What to say of syntax that a newer Python than ours may know."""
    wrong = any(
        output["error"] and output["error"]["kind"] == "SyntaxError"
        for output in outputs.values()
    )
    try:
        theirs = tuple(map(int, version.split(".")[:2]))
    except ValueError:
        return []
    if not wrong or theirs <= sys.version_info[:2]:
        return []
    return [
        f"It was written with Python {version}, and a cell has syntax "
        f"that Python {sys.version_info[0]}.{sys.version_info[1]}, which "
        "grades here, does not know."
    ]


class Batch:
    """One run of `grade`.

    out: folder of gradebook, records, autograded notebooks and feedback
    tell: is given each record, and whether it was there already
    launched: a warm process that is being started already
    say: is given what somebody must know before notebooks run
    """

    def __init__(
        self,
        source,
        out,
        tell,
        *,
        workers=None,
        scheduler=None,
        force=False,
        require_sandbox=False,
        limits=None,
        launched=None,
        say=lambda text: None,
    ):
        self.source, self.out = source, out
        self.tell, self.say = tell, say
        # Two more than cores: while one notebook runs, another is judged, and
        # what a third has started is being ended.
        self.workers = workers or (os.cpu_count() or 1) + 2
        self.scheduler, self.force = scheduler, force
        self.launched = launched
        self.settings = Settings(
            recorded_seed(out), limits or Limits(), require_sandbox
        )
        self.records = Records(out)
        self.results = set()  # (student, lesson) in the gradebook before
        self.graded = self.kept = self.todo = 0
        self.problems, self.notes, self.found = [], [], []
        self.good = set()  # (student, lesson) of files that can be graded

    def run(self):
        """Grade everything that is not graded yet.

        raises FileNotFoundError: nothing lies at the source, or the lesson's
            notebooks or answers are missing
        raises NoSandboxError: the sandbox is required and missing
        raises WarmError: notebooks cannot be run here at all
        raises BusyError: another batch writes to the same folder
        raises GradebookError: the gradebook is damaged
        raises NoRoomError: the disk is full
        """
        if not os.path.exists(self.source):
            raise FileNotFoundError(f"{self.source} is not there.")
        with _room(self.out), _alone(self.out):
            self._run()

    def _run(self):
        self._look_at_gradebook()
        self.found = arrivals(self.source, self.records.names())
        if not self.found:
            return
        self.records.remember({each.student: each.name for each in self.found})
        names = {each.lesson for each in self.found if not each.problem}
        self.settings = dataclasses.replace(
            self.settings, lessons=tuple(sorted(names))
        )
        if not self.scheduler:
            warm_process(self.settings).begin(self.launched)
        keys = self._keys()
        todo, kept = [], []
        for arrival in self.found:
            made = None if self.force else self._kept(arrival, keys)
            if made:
                kept.append(made)
            else:
                todo.append(arrival)
        self.todo = len(todo)
        bad = {
            (each.student, each.label) for each in self.found if each.problem
        }
        self.good = {
            (each.student, each.lesson)
            for each in self.found
            if not each.problem
        }
        self.records.forget_problems(self._path(), bad, self.good)
        with self._executor() as executor:
            self._grade_all(executor, todo, keys, kept)

    def _look_at_gradebook(self):
        """See what results it has, and say so if it is gone."""
        path = self.out / "gradebook.db"
        self.results = results_in(path)
        if not path.exists() and self.records.has_results():
            self.say(
                f"Careful: {path} is gone and is made anew, without the "
                "scores and comments that were given by hand, without due "
                "dates, and without notebooks that are not here. If you have "
                "a copy, stop now and put it back."
            )

    def _path(self, label=""):
        """Where a file that arrived lies; without one, all of them."""
        return pathlib.Path(self.source).resolve() / label

    def _keys(self):
        prints = {name: fingerprint(name) for name in self.settings.lessons}
        return {
            id(each): key_of(
                each,
                self.settings.seed,
                prints[each.lesson],
            )
            for each in self.found
            if not each.problem
        }

    def _kept(self, arrival, keys):
        """The stored record of a submission that has not changed."""
        name = (arrival.student, arrival.lesson)
        if arrival.problem or name not in self.results:
            return None
        made = self.records.find(*name)
        if made and made.get("key") == keys[id(arrival)]:
            return made
        return None

    @contextlib.contextmanager
    def _executor(self):
        if self.scheduler:
            from distributed import Client

            with Client(self.scheduler) as client:
                self.workers = max(1, len(client.ncores()))
                yield client.get_executor(retries=2)
        else:
            with concurrent.futures.ThreadPoolExecutor(
                self.workers
            ) as executor:
                if self.todo:
                    self._prepare(executor)
                yield executor
            warm_process(self.settings).close()

    def _prepare(self, executor):
        """Load what grading needs while the warm process starts."""
        with importing():  # answers, and what they need
            for name in self.settings.lessons:
                _prepared(name, self.settings.seed)
        executor.submit(_load_writer)
        warm = warm_process(self.settings)
        warm.wait()
        if warm.told:
            self.say(f"Careful: {warm.told}")

    def _grade_all(self, executor, todo, keys, kept):
        waiting, running = iter(todo), {}

        def submit():
            arrival = next(waiting, None)
            if arrival is not None:
                running[executor.submit(grade_one, arrival, self.settings)] = (
                    arrival
                )

        with self._ending(running):
            for _ in range(self.workers * AHEAD):
                submit()
            with self._writer() as writer, self._ending(running):
                self._tell_kept(writer, kept)
                while running:
                    done, _ = concurrent.futures.wait(
                        running, return_when="FIRST_COMPLETED"
                    )
                    for future in done:
                        arrival = running.pop(future)
                        submit()
                        self._finish(
                            writer, arrival, _result(future, arrival), keys
                        )

    @contextlib.contextmanager
    def _ending(self, running):
        """End the notebooks that run, if this is left before they are done.

        They may have minutes to go, and the executor would wait for them.
        """
        try:
            yield
        except BaseException as error:
            if running and isinstance(error, KeyboardInterrupt):
                self.say(
                    "Stopping: notebooks that are running now are ended, and "
                    "graded anew next time."
                )
            for future in running:
                future.cancel()
            running.clear()
            if not self.scheduler:
                warm_process(self.settings).stop()
            raise

    @contextlib.contextmanager
    def _writer(self):
        """A writer; when it is left, the tables say what it has written."""
        writer = _load_writer()(self.out)
        try:
            yield writer
        finally:
            try:
                self._write_tables(writer)
            finally:
                self.notes += writer.notes
                writer.close()

    def _tell_kept(self, writer, kept):
        """Tell what has not changed, as people may have changed what counts.

        A page is written again where it says something else by now.
        """
        chosen = {(made["student"], made["lesson"]) for made in kept}
        if not chosen:
            return
        writer.renew_penalties(chosen)
        standings = writer.standings()
        for made in kept:
            standing = standings.get((made["student"], made["lesson"]))
            if made.get("told") != standing or not writer.has_page(made):
                writer.write_page(made, standing)
                made["told"] = standing
                self.records.write(made)
            self.kept += 1
            self.tell(as_it_stands(made, standing), True)

    def _finish(self, writer, arrival, made, keys):
        standing = None
        try:
            if not made["problem"]:
                self._say_before(writer, made)
            # A broken file beside a good one does not take its page.
            if not arrival.problem or (
                (arrival.student, arrival.lesson) not in self.good
            ):
                standing = writer.write(
                    made, arrival.handed_in, arrival.secret
                )
        except Exception as error:
            if _is_full(error):
                raise  # so it would be for all the others
            made = problem(
                arrival,
                "its result could not be written "
                f"({type(error).__name__}: {error}).",
            )
        # The record comes last: what it names is in the gradebook.
        made["key"] = "" if made["problem"] else keys[id(arrival)]
        made["told"] = standing
        if made["problem"]:
            made["path"] = str(self._path(made["file"]))
        self.records.write(made)
        self.graded += 1
        if made["problem"]:
            self.problems.append(made)
        self.tell(as_it_stands(made, standing), False)

    def _say_before(self, writer, made):
        """Put into a record what its submission counted before."""
        student, lesson = made["student"], made["lesson"]
        before = self.records.find(student, lesson)
        if before:
            standing = writer.standings(student, lesson).get((student, lesson))
            made["before"] = as_it_stands(before, standing)["points"]

    def _write_tables(self, writer):
        """Write the tables of all results of the course so far.

        What counts is in the gradebook, and who is no longer in it is in no
        table.
        """
        from autograder.grading.export import exercises_table, grades_table

        standings = writer.standings()
        made = []
        for each in self.records.all():
            standing = standings.get((each["student"], each["lesson"]))
            if each["problem"]:
                made.append(each)
            elif standing:
                made.append(as_it_stands(each, standing))
        write_atomically(self.out / "grades.csv", grades_table(made))
        write_atomically(self.out / "exercises.csv", exercises_table(made))


def _load_writer():
    """The class that writes results; with it nbgrader, for a second.

    It would take two: jsonschema compiles 39 grammars for formats that no
    notebook has, if that module is there.
    """
    sys.modules.setdefault("rfc3987_syntax", None)
    with importing():
        from autograder.grading.gradebook import Writer
    return Writer


def _result(future, arrival):
    try:
        return future.result()
    except Exception as error:  # a worker of a cluster is gone for good
        return problem(
            arrival,
            f"the worker that graded it failed "
            f"({type(error).__name__}): grade it again.",
        )
