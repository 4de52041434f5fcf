"""Random schedules: mostly members that behave, among them every way in which one may not.

A schedule is a function of its seed alone. A group is interesting if members join, lose responses, release
late, change their minds and leave while others are half way. So steps are drawn with weights, and each
schedule leans towards some of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from fencepost.simulation.lab.conform.schedule import (
    Beat,
    CommitStep,
    CreateTopicStep,
    DeleteGroup,
    DeleteTopicStep,
    Describe,
    DescribeClassic,
    Epoch,
    Fetch,
    Forget,
    Grow,
    List,
    Owned,
    Remove,
    Removed,
    Schedule,
    Step,
    Wait,
)

TOPICS = {"x": 4, "y": 3, "z": 1, "w": 6}
MISSING = "m"
"""A topic that does not exist unless a step creates it."""
TIMEOUT_MS = 60_000
_REGEXES = (".*", "[xy]", "x|z", "x", "q.*", "[wm]", "(?i)X", "x.+")
_PREFERENCES: tuple[tuple[str | None, ...], ...] = (
    ("range",),
    ("range",),
    ("uniform",),
    (None,),
    (None, "range", "uniform"),
)
"""Assignors that the members of one schedule may ask for."""
_BAD_REGEXES = ("(", "[", "*", "a{2,1}")
_NAMES = "ABCDEFGH"
_METADATA_BYTES = (0, 0, 0, 10, 4096, 4097)

Make = Callable[["_Generator"], list[Step]]


def generate(seed: str, assignment_interval_ms: int) -> Schedule:
    """Return the random schedule of that seed. Waits are as long as the broker's assignment interval
    requires."""
    return _Generator(random.Random(seed), seed, assignment_interval_ms).schedule()


class _Generator:
    def __init__(self, rng: random.Random, seed: str, interval_ms: int) -> None:
        self.rng = rng
        self._seed = seed
        self._interval_ms = interval_ms
        self._assignors = rng.choice(_PREFERENCES)
        self._names = rng.sample(_NAMES, rng.randint(1, 5))
        self._joined: list[str] = []
        self._instances: dict[str, str] = {}
        self._static = rng.random() < 0.3
        self._regex = rng.random() < 0.3
        self._topic_steps = rng.random() < 0.15
        self._homogeneous = rng.random() < 0.5
        self._subscription = self._names_of_topics()

    def schedule(self) -> Schedule:
        steps: list[Step] = [*self.join()]
        length = self.rng.randint(15, 45)
        makes, weights = zip(*self._weights(), strict=True)
        while len(steps) < length:
            steps += self.rng.choices(makes, weights)[0](self)
        steps += [Describe(version=self.rng.choice([0, 1])), List()]
        return Schedule(name=f"random {self._seed}", topics=TOPICS, steps=tuple(steps))

    def _weights(self) -> list[tuple[Make, float]]:
        on = self.rng.choice([1.0, 3.0])
        table: list[tuple[Make, float]] = [
            (_Generator.join, 8),
            (_Generator.steady, 30),
            (_Generator.round, 8),
            (_Generator.full, 6),
            (_Generator.odd, 5 * on),
            (_Generator.resubscribe, 4),
            (_Generator.leave, 3),
            (_Generator.rejoin, 2),
            (_Generator.commit, 5),
            (_Generator.fetch, 3),
            (_Generator.forget, 1),
            (_Generator.describe, 4),
            (_Generator.remove, 1.5),
            (_Generator.delete_group, 0.7),
        ]
        if self._topic_steps:
            table.append((_Generator.change_topics, 5))
        if self._interval_ms:
            table.append((_Generator.wait, 4))
        return table

    def _member(self) -> str:
        return self.rng.choice(self._joined or self._names)

    def _names_of_topics(self) -> tuple[str, ...]:
        names = self.rng.sample([*TOPICS, MISSING], self.rng.randint(1, 3))
        return tuple(names)

    def _subscribe(self) -> dict[str, Any]:
        """Return names, an expression, or both."""
        if self._regex and self.rng.random() < 0.6:
            names = self.rng.choice([None, (), self._subscription])
            return {"names": names, "regex": self.rng.choice(_REGEXES)}
        if self._homogeneous and self.rng.random() < 0.8:
            return {"names": self._subscription}
        return {"names": self.rng.choice([self._names_of_topics(), ("x", "x", "y"), ()])}

    def _timeout_ms(self) -> int:
        return self.rng.choice([TIMEOUT_MS, TIMEOUT_MS, 30_000])

    def join(self) -> list[Step]:
        """Let a new member join, or a static one return as another process."""
        waiting = [name for name in self._names if name not in self._joined]
        if not waiting:
            return self.steady()
        name = self.rng.choice(waiting)
        self._joined.append(name)
        instance = None
        if self._static and self.rng.random() < 0.6:
            instance = self._instances[name] = self.rng.choice(["i1", "i2"])
        version, member_id = self.rng.choice([(1, None)] * 6 + [(0, None), (0, "")])
        fields = self._subscribe()
        if not version:
            fields["regex"] = None
            fields["names"] = fields["names"] or ("x",)
        joined = Beat(
            member=name,
            epoch=0,
            owned=Owned.EMPTY,
            rebalance_timeout_ms=self._timeout_ms(),
            instance=instance,
            assignor=self.rng.choice(self._assignors),
            rack=self.rng.choice([None, None, "r1"]),
            version=version,
            member_id=member_id,
            lost=self.rng.random() < 0.05 and member_id is None,
            **fields,
        )
        return [joined]

    def steady(self) -> list[Step]:
        """Let a well-behaved member send a heartbeat."""
        name = self._member()
        owned = self.rng.choices(
            [Owned.NULL, Owned.ASSIGNED, Owned.BEFORE, Owned.PARTIAL, Owned.EMPTY], [35, 45, 8, 6, 6]
        )[0]
        return [Beat(member=name, owned=owned, instance=self._instance(name), lost=self.rng.random() < 0.12)]

    def _instance(self, name: str) -> str | None:
        return self._instances.get(name) if self.rng.random() < 0.8 else None

    def round(self) -> list[Step]:
        """Let all members confirm their assignments, in some order: so groups make progress."""
        members = self.rng.sample(self._joined, len(self._joined))
        return [
            Beat(member=name, owned=Owned.ASSIGNED, instance=self._instances.get(name))
            for _ in range(self.rng.choice([1, 2]))
            for name in members
        ]

    def full(self) -> list[Step]:
        """Send a full request: after a lost response, or with the epoch before."""
        name = self._member()
        return [
            Beat(
                member=name,
                epoch=self.rng.choice([Epoch.LAST, Epoch.LAST, Epoch.PREVIOUS]),
                owned=self.rng.choice([Owned.ASSIGNED, Owned.ASSIGNED, Owned.BEFORE]),
                rebalance_timeout_ms=self._timeout_ms(),
                instance=self._instance(name),
                **self._subscribe(),
            )
        ]

    def odd(self) -> list[Step]:
        """Send any combination of fields."""
        rng = self.rng
        if rng.random() < 0.4:
            return [self._blank()]
        name = rng.choice([*self._names, self._member()])
        epoch = rng.choice([*Epoch, *Epoch, 0, -1, -2, -3, 1, 2, 99])
        return [
            Beat(
                member=name,
                epoch=epoch,
                owned=rng.choice(list(Owned)),
                names=rng.choice([None, None, (), ("x",), ("m",), ("z", "x", "z")]),
                regex=rng.choice([None, None, None, "", *_REGEXES[:2], *_BAD_REGEXES]),
                instance=rng.choice([None, None, self._instances.get(name), "i1", "i2"]),
                rack=rng.choice([None, None, "r2"]),
                rebalance_timeout_ms=rng.choice([-1, -1, TIMEOUT_MS]),
                assignor=rng.choice([None, None, "range", "uniform"]),
                version=rng.choice([0, 1, 1, 1]),
                member_id=rng.choice([None, None, None, None, "stranger", rng.choice(self._names)]),
                lost=rng.random() < 0.1,
            )
        ]

    def _blank(self) -> Step:
        """Return a heartbeat with one or two fields that no heartbeat may have."""
        rng = self.rng
        name = self._member()
        join: dict[str, Any] = {
            "epoch": 0,
            "owned": Owned.EMPTY,
            "names": ("x",),
            "rebalance_timeout_ms": TIMEOUT_MS,
        }
        base: dict[str, Any] = rng.choice([join, join, {}, {"epoch": -1}, {"epoch": -2}, {"epoch": 5}])
        faults: list[dict[str, Any]] = [
            {"member_id": ""},
            {"member_id": " "},
            {"member_id": "", "version": 0},
            {"group": " "},
            {"group": "other", "epoch": 1},
            {"group": "other", "epoch": -1},
            {"instance": " "},
            {"rack": ""},
            {"assignor": "sticky"},
            {"assignor": ""},
            {"epoch": -5},
            {"epoch": -2, "instance": None},
            {"rebalance_timeout_ms": -1},
            {"owned": Owned.NULL},
            {"owned": Owned.UNKNOWN},
            {"names": None},
            {"names": None, "regex": rng.choice(_BAD_REGEXES)},
            {"names": (), "regex": ""},
        ]
        for fault in rng.sample(faults, rng.choice([1, 1, 2])):
            base = {**base, **fault}
        return Beat(member=name, lost=True, **base)

    def resubscribe(self) -> list[Step]:
        """Change a member's subscription, alone or in a full request, or what it prefers."""
        rng = self.rng
        name = self._member()
        fields = rng.choice(
            [
                self._subscribe(),
                self._subscribe(),
                {"names": ()},
                {"regex": ""},
                {"names": (), "regex": ""},
                {"assignor": rng.choice(["range", "uniform"])},
                {"rack": "r3"},
                {"rebalance_timeout_ms": 45_000},
            ]
        )
        owned = rng.choice([Owned.NULL, Owned.ASSIGNED, Owned.EMPTY])
        return [Beat(member=name, owned=owned, instance=self._instance(name), **fields)]

    def leave(self) -> list[Step]:
        """Let a member leave, for good or for a while; its instance id may come back under a new name."""
        name = self._member()
        instance = self._instances.get(name)
        epoch = -2 if instance and self.rng.random() < 0.7 else -1
        gone = Beat(member=name, epoch=epoch, instance=instance, lost=self.rng.random() < 0.1)
        if name in self._joined and self.rng.random() < 0.7:
            self._joined.remove(name)
        if epoch == -2 and self.rng.random() < 0.6:
            heir = self.rng.choice([name, *self._names])
            fields: dict[str, Any] = {"names": self._subscription}
            if self.rng.random() < 0.4:
                fields = self._subscribe()
            if heir not in self._joined:
                self._joined.append(heir)
            self._instances[heir] = instance or "i1"
            between = self.steady() if self._joined and self.rng.random() < 0.5 else []
            back = Beat(
                member=heir,
                epoch=0,
                owned=Owned.EMPTY,
                rebalance_timeout_ms=self._timeout_ms(),
                instance=instance,
                **fields,
            )
            return [gone, *between, back]
        return [gone]

    def rejoin(self) -> list[Step]:
        """Let a member rejoin that was fenced, or thinks so."""
        name = self._member()
        return [
            Beat(
                member=name,
                epoch=0,
                owned=Owned.EMPTY,
                rebalance_timeout_ms=self._timeout_ms(),
                instance=self._instance(name),
                **self._subscribe(),
            )
        ]

    def _partitions(self) -> dict[str, tuple[int, ...]]:
        rng = self.rng
        names = rng.sample([*TOPICS, MISSING], rng.choice([1, 1, 2]))
        return {name: tuple(sorted(rng.sample(range(7), rng.choice([1, 2])))) for name in names}

    def commit(self) -> list[Step]:
        """Commit offsets, by a member at some epoch, or by no member."""
        rng = self.rng
        member = rng.choice([None, self._member(), self._member(), self._member()])
        epochs: list[Epoch | int] = [Epoch.LAST, Epoch.LAST, *Epoch, -1, 0]
        return [
            CommitStep(
                topics=self._partitions() if rng.random() < 0.3 else {rng.choice("xyzw"): (0,)},
                offset=rng.randint(0, 99),
                member=member,
                epoch=rng.choice(epochs) if member else rng.choice([-1, -1, 0, 3]),
                metadata_bytes=rng.choice(_METADATA_BYTES),
                version=rng.choice([2, 5, 8, 9, 9, 9, 10]),
                group=rng.choice([None] * 8 + ["other"]),
            )
        ]

    def fetch(self) -> list[Step]:
        """Fetch offsets, by a member at some epoch, or by no member."""
        rng = self.rng
        member = rng.choice([None, self._member()])
        version = rng.choice([1, 5, 7, 8, 9, 9, 10])
        topics = self._partitions() if version < 2 or rng.random() < 0.6 else None
        return [
            Fetch(
                topics=topics,
                member=member,
                epoch=rng.choice([Epoch.LAST, Epoch.LAST, *Epoch, -1, 0]) if member else -1,
                version=version,
                group=rng.choice([None] * 8 + ["other"]),
                stable=rng.random() < 0.2,
            )
        ]

    def forget(self) -> list[Step]:
        """Send OffsetDelete."""
        return [Forget(topics=self._partitions(), group=self.rng.choice([None] * 8 + ["other"]))]

    def describe(self) -> list[Step]:
        """Send requests by which administrators describe groups."""
        rng = self.rng
        states = rng.choice([(), ("stable",), ("Empty", "Reconciling"), ("nonsense",)])
        types = rng.choice([(), ("Consumer",), ("classic",)])
        questions: list[Step] = [
            Describe(version=rng.choice([0, 1])),
            Describe(version=1),
            Describe(group=rng.choice(["other", ""])),
            DescribeClassic(version=rng.choice([5, 6])),
            List(states=states, types=types),
            List(version=rng.choice([2, 4])),
        ]
        return [rng.choice(questions)]

    def remove(self) -> list[Step]:
        """Send LeaveGroup, by member, by instance, or by both."""
        rng = self.rng
        some = [
            Removed(
                member=rng.choice([self._member(), self._member(), "stranger", ""]),
                instance=rng.choice([None, None, "i1", "i9"]),
            )
            for _ in range(rng.choice([1, 1, 2, 3]))
        ]
        version = rng.choice([2, 3, 5, 5])
        if version < 3:
            some = [Removed(member=self._member())]
        return [Remove(members=tuple(some), version=version)]

    def delete_group(self) -> list[Step]:
        """Send DeleteGroups, alone or once all members have left."""
        rng = self.rng
        if rng.random() < 0.5:
            return [DeleteGroup(group=rng.choice([None, "other"]))]
        leaves: list[Step] = [Beat(member=name, epoch=-1) for name in self._joined]
        self._joined.clear()
        return [*leaves, Describe(), DeleteGroup(), Describe()]

    def change_topics(self) -> list[Step]:
        """Create, grow or delete topics, and let some member's heartbeat notice."""
        rng = self.rng
        changes: list[Step] = [
            CreateTopicStep(topic=MISSING, partitions=rng.randint(1, 3)),
            Grow(topic=rng.choice([*TOPICS, MISSING]), partitions=rng.randint(2, 8)),
            Grow(topic=rng.choice("xyzw"), partitions=rng.randint(5, 8)),
            DeleteTopicStep(topic=rng.choice([*TOPICS, MISSING])),
        ]
        return [rng.choice(changes), *self.steady(), *self.steady()]

    def wait(self) -> list[Step]:
        """Wait long enough for the next target."""
        return [Wait(ms=self._interval_ms + 100), *self.steady(), *self.steady()]
