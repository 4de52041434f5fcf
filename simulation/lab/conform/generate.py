"""Random schedules: mostly members that behave, among them every way in which one may not.

A schedule is a function of its seed alone. Each kind of group has a table of scripts with weights. `steps`
says how scripts are read, and these have choices in them: `{a; b}` is one of the two, `{3 a; b}` is three
times as often a, and `{name}` is what the table has under that name, or one of these:

- `{member}` has joined, if any has, and `{any}` may have; with their instance ids, if they have any
- `{new}` has not joined, and `{last}` was named last; `{name}` and `{heir}` are bare names, `{heir}` with the
  last one's instance id; `{all}` have joined, in some order
- `{shares}` are all partitions of `{topics}`, divided among those that joined

Values of `once` are drawn once for a schedule. In them `<name>` stands for what is drawn each time.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from fencepost.simulation.lab.conform import schedule
from fencepost.simulation.lab.conform.steps import steps

TOPICS: Final[Mapping[str, int]] = {"x": 4, "y": 3, "z": 1, "w": 6}
"""The topics that exist at first; m does not."""
_CHOICE: Final = re.compile(r"\{([^{}]*)\}")
_WEIGHT: Final = re.compile(r"(\d+) (.*)", re.DOTALL)


class ScheduleTable(NamedTuple):
    """The scripts of one kind of group."""

    kind: str
    names: str
    static: Mapping[str, tuple[str, ...]]
    """Instance ids that members may have in three of ten schedules, by name."""
    once: Mapping[str, str]
    values: Mapping[str, str]
    begin: str
    rows: tuple[tuple[float, str], ...]
    more: Mapping[str, tuple[tuple[float, str], ...]]
    """Rows that count if `once` has a value of that name."""
    end: str


class _Draw:
    def __init__(self, table: ScheduleTable, seed: str, given: Mapping[str, str]) -> None:
        self.rng = random.Random(f"{table.kind} {seed}")
        self._table = table
        self._given = given
        self._names = self.rng.sample(table.names, self.rng.randint(1, 5))
        static = table.static if self.rng.random() < 0.3 else {}
        self._instances = {name: self.rng.choice(static.get(name, ("",))) for name in table.names}
        self._joined: list[str] = []
        self._last = self._names[0]
        self._once: dict[str, str] = {}
        for name, text in table.once.items():
            self._once[name] = self._text(text)

    def drawn(self, seed: str) -> schedule.Schedule:
        found = self._steps(self._table.begin)
        length = self.rng.randint(15, 45)
        rows = [*self._table.rows]
        for toggle, more in self._table.more.items():
            rows += more if self._once.get(toggle) or self._given.get(toggle) else ()
        while len(found) < length:
            (row,) = self.rng.choices(rows, [weight for weight, _ in rows])
            found += self._steps(row[1])
        found += self._steps(self._table.end)
        name = " ".join(filter(None, ("random", self._table.kind, seed)))
        return schedule.Schedule(name=name, topics=TOPICS, steps=tuple(found))

    def _steps(self, text: str) -> list[schedule.Step]:
        found = steps(self._text(text))
        for step in found:
            self._follow(step)
        return found

    def _follow(self, step: schedule.Step) -> None:
        """Note which members join and leave, as far as the step says."""
        gone: tuple[str, ...] = ()
        match step:
            case schedule.ClassicJoinStep(member=name) if name in self._names:
                self._join(name)
            case schedule.Beat(member=name, epoch=0) | schedule.StreamsBeat(member=name, epoch=0):
                self._join(name)
            case schedule.Beat(member=name, epoch=-1 | -2) | schedule.StreamsBeat(member=name, epoch=-1):
                gone = (name,)
            case schedule.Remove(members=members):
                gone = tuple(each.member for each in members)
        if self.rng.random() < 0.8:  # some are believed to be in the group that are not
            self._joined = [name for name in self._joined if name not in gone]

    def _join(self, name: str) -> None:
        if name in self._names and name not in self._joined:
            self._joined.append(name)

    def _text(self, text: str) -> str:
        """Return the text with all choices made, the inner ones first."""
        while (found := _CHOICE.search(text)) is not None:
            text = text[: found.start()] + self._choice(found[1]) + text[found.end() :]
        return text

    def _choice(self, text: str) -> str:
        known = self._once.get(text) or self._table.values.get(text) or self._given.get(text)
        if known is not None:
            return known.replace("<", "{").replace(">", "}")
        if text in self._once:
            return ""
        if ";" not in text:
            return self._named(text)
        weighted = [_WEIGHT.fullmatch(one) or (one, "1", one) for one in map(str.lstrip, text.split(";"))]
        return str(self.rng.choices([one[2] for one in weighted], [int(one[1]) for one in weighted])[0])

    def _named(self, what: str) -> str:
        rng = self.rng
        match what:
            case "all":
                return ",".join(map(self._sender, rng.sample(self._joined, len(self._joined)))) or "A"
            case "shares":
                return self._shares()
            case "last":
                return self._sender(self._last)
            case "process":
                return "pqr"[ord(self._last) % 3]
            case "heir":
                instance = self._instances[self._last]
                self._last = rng.choice(self._names)
                return self._last + (instance and f"@{instance}")
        there = {"new": [name for name in self._names if name not in self._joined], "any": self._names}
        self._last = rng.choice(there.get(what) or self._joined or self._names)
        return self._last if what == "name" else self._sender(self._last)

    def _sender(self, name: str) -> str:
        """Return a member with its instance id, unless it omits that."""
        instance = self._instances[name]
        return f"{name}@{instance}" if instance and self.rng.random() < 0.9 else name

    def _shares(self) -> str:
        given: dict[str, dict[str, list[str]]] = {name: {} for name in self._joined or self._names}
        for topic in self._once["topics"].split(","):
            for number in range(TOPICS[topic]):
                given[self.rng.choice([*given])].setdefault(topic, []).append(str(number))
        return "|".join(
            f"{name}:" + "/".join(f"{topic}:{'+'.join(numbers)}" for topic, numbers in held.items())
            for name, held in given.items()
        )


def generate(table: ScheduleTable, seed: str, **given: int) -> schedule.Schedule:
    """Return the random schedule of that seed. `given` are values of the broker: how long it waits."""
    return _Draw(table, seed, {name: str(value) for name, value in given.items() if value}).drawn(seed)
