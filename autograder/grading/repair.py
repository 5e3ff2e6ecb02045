"""The graded notebook: the released one with a learner's source put in.

Cells are found again by their grade id, by the names that they define, and by
what they look like. Everything that had to be mended is said in a sentence,
and whatever has no place in the released notebook runs where the learner had
it.
"""

import collections
import dataclasses
import difflib
import functools
import re

from autograder.cells import defines, parses
from autograder.course import checked_by
from autograder.grading.reading import Cell

ALIKE = 0.6  # share of characters in common from which a cell is recognised
# Share of letters in common words. Where ALIKE is reached it is 0.47 and more
# (all stubs against all references), between other cells mostly below 0.4.
COMMON = 0.4
# Pairs of characters that are compared for one notebook: half a second.
MAX_LOOKS = 10_000_000


@dataclasses.dataclass(frozen=True)
class Placed:
    """A cell of the graded notebook.

    role: as of a released cell, or "own" for one that the learner added
    name: the grade id, "" for text and own cells
    """

    kind: str
    role: str
    source: str
    name: str = ""

    @property
    def exercise(self):
        return checked_by(self.name)


@dataclasses.dataclass(frozen=True)
class Rebuilt:
    """A notebook to grade, and what was mended to get it."""

    cells: tuple[Placed, ...]
    repairs: tuple[str, ...]


def rebuild(lesson, submitted):
    """A lesson's notebook with what a learner wrote in it."""
    return _Rebuilding(lesson, submitted).result()


def share(lesson, submitted):
    """How many of a lesson's cells a submission has something for."""
    marks = {cell.name for cell in lesson.cells if cell.name}
    names = frozenset().union(
        *(cell.defines for cell in lesson.answers.values())
    )
    found = {cell.mark for cell in submitted.cells} & marks - {
        "setup",
        "imports",
    }
    defined = frozenset().union(
        *(
            defines(cell.source)
            for cell in submitted.cells
            if cell.kind == "code"
        )
    )
    return len(found) + len(defined & names)


def written(lesson, submitted):
    """How many answers differ from what was released."""
    rebuilt = rebuild(lesson, submitted)
    stubs = {
        name: _plain(cell.source) for name, cell in lesson.answers.items()
    }
    return sum(
        cell.role == "answer" and _plain(cell.source) != stubs[cell.name]
        for cell in rebuilt.cells
    )


class _Rebuilding:
    """The steps of one rebuild; each cell is used once."""

    def __init__(self, lesson, submitted):
        self.lesson = lesson
        self.repairs = list(submitted.repairs)
        self.cells = self._joined(submitted.cells)
        self.plain = [_plain(cell.source) for cell in self.cells]
        self.looks = 0  # pairs of characters that were compared
        self.place = {}  # index of a submitted cell: index of a released one
        self.answer = {}  # grade id: source
        self.added = []  # (index of a submitted cell, its source)
        self.dropped = set()
        if (
            submitted.version
            and lesson.version
            and (submitted.version != lesson.version)
        ):
            self.say(
                f"It was made from version {submitted.version} of the "
                f"lesson; it is graded by version {lesson.version}."
            )

    def say(self, text):
        if text not in self.repairs:
            self.repairs.append(text)

    def result(self):
        self._find_released()
        self._find_answers()
        return Rebuilt(tuple(self._in_order()), tuple(self.repairs))

    def _joined(self, cells):
        """Put together what was one cell: pieces that only parse as one."""
        made = []
        for cell in cells:
            last = made[-1] if made else None
            if (
                last
                and last.kind == cell.kind
                and (cell.kind == "code" or last.mark in self.lesson.answers)
                and not (parses(last.source) and parses(cell.source))
                and (not cell.mark or not last.mark or cell.mark == last.mark)
            ):
                both = f"{last.source}\n{cell.source}"
                if cell.source.strip() and parses(both):
                    made[-1] = Cell("code", both, last.mark or cell.mark)
                    self.say(
                        f"The cell that begins with "
                        f"{_beginning(last.source)} had been split; "
                        "its parts were joined."
                    )
                    continue
            made.append(cell)
        return made

    def _find_released(self):
        """Recognise what is not the learner's own: text, given, checks."""
        places = collections.defaultdict(list)
        for index, given in enumerate(self.lesson.cells):
            if given.role != "answer":
                places[_plain(given.source)].append(index)
        marks = {
            given.name: index
            for index, given in enumerate(self.lesson.cells)
            if given.role in ("given", "check") and given.name
        }
        wanted = frozenset().union(
            *(cell.defines for cell in self.lesson.answers.values())
        )
        seen = set()
        for index, cell in enumerate(self.cells):
            same = places.get(self.plain[index])
            if same:
                self.place[index] = same[0]
                self.dropped.add(index)
                seen.add(same[0])
            elif cell.mark in marks and not defines(cell.source) & wanted:
                self._changed(index, cell, marks[cell.mark])
                seen.add(marks[cell.mark])
        missing = [
            given.name
            for index, given in enumerate(self.lesson.cells)
            if given.role in ("given", "check") and index not in seen
        ]
        if missing:
            self.say(
                f"Released cells were missing and were put back: "
                f"{', '.join(missing)}."
            )

    def _changed(self, index, cell, place):
        given = self.lesson.cells[place]
        self.place[index] = place
        self.dropped.add(index)
        if not cell.source.strip():
            self.say(
                f"The released cell {given.name} had been emptied; the "
                "released one is used."
            )
            return
        self.say(
            f"The released cell {given.name} had been changed; the "
            "released one is used"
            + (
                ", followed by the changed one."
                if cell.kind == "code" and _adds(cell, given)
                else "."
            )
        )
        if cell.kind == "code" and _adds(cell, given):
            self.added.append((index, cell.source))

    def _find_answers(self):
        answers = self.lesson.answers
        free = [
            index
            for index in range(len(self.cells))
            if index not in self.dropped
        ]
        owner = self._owners(free, answers)
        used = {}  # index of a cell: grade id of the answer it became
        for name, given in answers.items():
            marked = [
                i
                for i in free
                if self.cells[i].mark == name and owner.get(i, name) == name
            ]
            named = [
                i
                for i in free
                if i not in marked
                and given.defines & defines(self.cells[i].source)
            ]
            chosen = self._chosen(name, given, marked, named)
            if chosen is None:
                chosen = self._similar(name, given, free, used)
            if chosen is None:
                self.answer[name] = given.source
                self.say(
                    f"No cell for {name} was found; the released one "
                    "was put back."
                )
                continue
            place = self._index(name)
            parts = [i for i in chosen if i not in used]
            for i in parts:
                used[i] = name
                self.place[i] = place
                self.dropped.add(i)
            # One cell may answer several exercises: it runs at the first.
            self.answer[name] = "\n\n".join(
                self.cells[i].source for i in parts
            )

    def _owners(self, free, answers):
        """Cells whose content belongs elsewhere than their mark says."""
        owner = {}
        names = {name: given.defines for name, given in answers.items()}
        for i in free:
            cell = self.cells[i]
            if not cell.mark or cell.mark not in names:
                continue
            found = defines(cell.source)
            if not found or found & names[cell.mark]:
                continue
            other = [name for name, due in names.items() if found & due]
            if len(other) == 1:
                owner[i] = other[0]
        return owner

    def _chosen(self, name, given, marked, named):
        """The cells that make up an answer, or None."""
        stub = _plain(given.source)
        untouched = [i for i in marked + named if self.plain[i] == stub]
        own = [
            i
            for i in marked
            if i not in untouched and self.cells[i].source.strip()
        ]
        others = [i for i in named if i not in untouched]
        # A copy of the stub would undo the answer before it.
        self.dropped |= set(untouched)
        for i in untouched:
            self.place[i] = self._index(name)
        for i in marked:
            if not self.cells[i].source.strip():
                self.dropped.add(i)
        complete = (
            [i for i in own if given.defines & defines(self.cells[i].source)]
            if given.defines
            else own
        )
        if complete:
            chosen = self._of_copies(name, own, complete)
        elif others:
            best = self._best(others)
            # What could not be part of the answer runs where it stands.
            parts = [
                i for i in own if i < best and parses(self.cells[i].source)
            ]
            chosen = [*parts, best]
            self.say(
                f"The answer to {name} was found in another cell than "
                "the one for it"
                + ("." if parts == own else ", which runs, too.")
            )
        elif own:
            chosen = own
            self._say_renamed(name, given, own)
        else:
            return untouched[:1] or None
        for i in chosen:
            if self.cells[i].kind != "code" and given.kind == "code":
                self.say(
                    f"The cell of {name} had been turned into "
                    f"{self.cells[i].kind}; it was run as code."
                )
        return chosen

    def _of_copies(self, name, own, complete):
        texts = {self.plain[i] for i in complete}
        if len(complete) == 1:
            if len(own) > 1:
                self.say(
                    f"The cell of {name} had been split; its parts "
                    "were put together in their order."
                )
            return own
        best = self._best(complete)
        known = defines(self.cells[best].source)
        for i in complete:
            self.place[i] = self._index(name)
            if defines(self.cells[i].source) <= known:
                self.dropped.add(i)
            else:
                # The last one may call what only this one defines.
                self.place[i] -= 1
        self.say(
            f"The cell of {name} was there {len(complete)} times; "
            + (
                "the copies are alike."
                if len(texts) == 1
                else "the last one that is Python was used."
            )
        )
        return [best]

    def _best(self, indices):
        """The last cell that parses, else the last one."""
        good = [i for i in indices if parses(self.cells[i].source)]
        return (good or indices)[-1]

    def _say_renamed(self, name, given, own):
        found = frozenset().union(
            *(defines(self.cells[i].source) for i in own)
        )
        if found and given.defines and not found & given.defines:
            self.say(
                f"The cell of {name} defines "
                f"{', '.join(sorted(found))} instead. The name must be "
                f"{name}."
            )

    def _similar(self, name, given, free, used):
        """A cell that looks like the released one, marks and names lost."""
        best, found = ALIKE, None
        stub = _plain(given.source)
        for i in free:
            cell = self.cells[i]
            if (
                i in used
                or i in self.dropped
                or cell.mark in (self.lesson.answers)
            ):
                continue
            likeness = self._likeness(stub, self.plain[i])
            if likeness > best:
                best, found = likeness, i
        if found is None:
            return None
        self.say(f"The cell of {name} was recognised by what it looks like.")
        self._say_renamed(name, given, [found])
        return [found]

    def _likeness(self, one, other):
        """Share of characters in common, 0 where it is not worth a look."""
        shorter, size = min(len(one), len(other)), len(one) + len(other)
        if 2 * shorter <= ALIKE * size or _common(one, other) < COMMON:
            return 0
        looks = self.looks + len(one) * len(other)
        if looks > MAX_LOOKS:
            self.say(
                "There are too many cells that look like answers to compare "
                "them all: write each answer in the cell that is for it."
            )
            return 0
        self.looks = looks
        return difflib.SequenceMatcher(
            None, one, other, autojunk=False
        ).ratio()

    def _index(self, name):
        return next(
            index
            for index, given in enumerate(self.lesson.cells)
            if given.role == "answer" and given.name == name
        )

    def _in_order(self):
        """Released cells in their order, a learner's own where they were."""
        first = next(
            (
                index
                for index, given in enumerate(self.lesson.cells)
                if given.role == "answer"
            ),
            len(self.lesson.cells),
        )
        head = max(
            (
                index
                for index, given in enumerate(self.lesson.cells[:first])
                if given.role == "given"
            ),
            default=-1,
        )
        after = collections.defaultdict(list)
        added = dict(self.added)
        anchor, moved = head, False
        for index, cell in enumerate(self.cells):
            if index in self.place:
                moved = moved or (
                    index in self.dropped
                    and self.place[index] < anchor != head
                )
                anchor = max(self.place[index], head)
            if index in added:
                after[anchor].append(Placed("code", "own", added[index]))
            elif index not in self.dropped and cell.source.strip():
                after[anchor].append(Placed(cell.kind, "own", cell.source))
        if moved:
            self.say(
                "Cells were not in the released order; they were put "
                "back into it."
            )
        if head < 0:
            yield from after.pop(head, ())
        for index, given in enumerate(self.lesson.cells):
            source = given.source
            if given.role == "answer":
                source = self.answer[given.name]
            yield Placed(given.kind, given.role, source, given.name)
            yield from after[index]


def _plain(source):
    """A source as it is compared: without blank lines and line ends."""
    return "\n".join(
        line.rstrip() for line in source.strip().splitlines() if line.strip()
    )


def _common(one, other):
    """Share of letters that stand in words of both texts."""
    one, other = _words(one), _words(other)
    letters = _letters(one) + _letters(other)
    return 2 * _letters(one & other) / letters if letters else 0


@functools.lru_cache(maxsize=64)  # one of the two is a stub of the lesson
def _words(text):
    return collections.Counter(re.findall(r"\w+", text))


def _letters(words):
    return sum(len(word) * count for word, count in words.items())


def _beginning(source):
    line = source.strip().partition("\n")[0]
    return repr(line if len(line) < 50 else line[:47] + "...")


def _adds(cell, given):
    """Whether a changed cell has lines of code that the given one lacks."""
    lines = {line.strip() for line in given.source.splitlines()}
    new = [
        line
        for line in cell.source.splitlines()
        if line.strip() and line.strip() not in lines
    ]
    if given.role == "check":
        # Other calls of check are no business of the graded notebook.
        new = [line for line in new if not line.strip().startswith("check(")]
    return bool(new) and parses(cell.source)
