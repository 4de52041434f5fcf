"""Random schedules of streams groups: threads of a few processes, most of which behave."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from fencepost.simulation.lab.conform.generate import MISSING, TIMEOUT_MS, TOPICS
from fencepost.simulation.lab.conform.schedule import (
    CommitStep,
    Configure,
    CreateTopicStep,
    DeleteGroup,
    DeleteTopicStep,
    DescribeStreams,
    Epoch,
    Fetch,
    Grow,
    List,
    Owned,
    Schedule,
    Step,
    StreamsBeat,
)

_NAMES = "ABCDEF"
_PROCESSES = ("p", "q", "r")
_GOOD = ("simple", "simple", "two", "stateful", "count", "joined")
_BAD = (
    "missing",
    "uneven",
    "fixed",
    "loop",
    "unfed",
    "nothing",
    "sized",
    "internal",
    "misnamed",
    "regex",
    "index",
)

Make = Callable[["_Generator"], list[Step]]


def generate_streams(seed: str) -> Schedule:
    """Return the random schedule of that seed."""
    return _Generator(random.Random(f"streams {seed}"), seed).schedule()


class _Generator:
    def __init__(self, rng: random.Random, seed: str) -> None:
        self.rng = rng
        self._seed = seed
        self._topology = rng.choice(_GOOD) if rng.random() < 0.85 else rng.choice(_BAD)
        self._names = rng.sample(_NAMES, rng.randint(1, 5))
        self._processes = {name: rng.choice(_PROCESSES) for name in self._names}
        self._endpoints = rng.random() < 0.2
        self._changes_topics = rng.random() < 0.3
        self._joined: list[str] = []

    def schedule(self) -> Schedule:
        rng = self.rng
        steps: list[Step] = []
        if rng.random() < 0.4:
            steps.append(Configure(values={"streams.num.standby.replicas": str(rng.choice([1, 1, 2]))}))
        steps += self.join()
        length = rng.randint(12, 35)
        makes, weights = zip(*self._weights(), strict=True)
        while len(steps) < length:
            steps += rng.choices(makes, weights)[0](self)
        steps += [DescribeStreams(), List(types=("streams",))]
        return Schedule(name=f"random streams {self._seed}", topics=TOPICS, steps=tuple(steps))

    def _weights(self) -> list[tuple[Make, float]]:
        table: list[tuple[Make, float]] = [
            (_Generator.join, 8),
            (_Generator.steady, 25),
            (_Generator.round, 10),
            (_Generator.odd, 5),
            (_Generator.leave, 3),
            (_Generator.rejoin, 2),
            (_Generator.shut_down, 1),
            (_Generator.bad_request, 2),
            (_Generator.commit, 4),
            (_Generator.describe, 3),
            (_Generator.configure, 1),
            (_Generator.delete_group, 0.7),
        ]
        if self._changes_topics:
            table.append((_Generator.change_topics, 5))
        return table

    def _member(self) -> str:
        return self.rng.choice(self._joined or self._names)

    def _joining(self, name: str) -> dict[str, Any]:
        return {
            "member": name,
            "epoch": 0,
            "owned": Owned.EMPTY,
            "topology": self._topology,
            "process": self._processes[name],
            "endpoint": f"host-{self._processes[name]}" if self._endpoints else None,
            "rebalance_timeout_ms": TIMEOUT_MS,
        }

    def join(self) -> list[Step]:
        """Let a member join that is not there yet, now and then with a lost response."""
        rng = self.rng
        name = rng.choice(self._names)
        if name not in self._joined:
            self._joined.append(name)
        tags = {"zone": "a"} if rng.random() < 0.1 else None
        return [StreamsBeat(**self._joining(name), tags=tags, lost=rng.random() < 0.05)]

    def rejoin(self) -> list[Step]:
        """Let a member rejoin, perhaps as a thread of another process."""
        name = self._member()
        joining = self._joining(name)
        if self.rng.random() < 0.3:
            joining["process"] = self.rng.choice(_PROCESSES)
        if self.rng.random() < 0.2:
            joining["topology"] = self.rng.choice(_GOOD)
        if self.rng.random() < 0.2:
            joining["topology_epoch"] = self.rng.choice([-1, 1])
        return [StreamsBeat(**joining)]

    def steady(self) -> list[Step]:
        """Let members go on, and perhaps report what they own."""
        owned = self.rng.choice([Owned.NULL, Owned.ASSIGNED, Owned.ASSIGNED])
        epoch = self.rng.choice([0, 0, 1, 99])
        return [StreamsBeat(member=self._member(), owned=owned, endpoint_epoch=epoch)]

    def round(self) -> list[Step]:
        """Let all members send a heartbeat in turn."""
        names = list(self._joined)
        self.rng.shuffle(names)
        return [StreamsBeat(member=name, owned=Owned.ASSIGNED) for name in names]

    def odd(self) -> list[Step]:
        """Send an epoch or a list of tasks that is not the newest."""
        rng = self.rng
        return [
            StreamsBeat(
                member=self._member(),
                epoch=rng.choice([*Epoch, Epoch.LAST, Epoch.PREVIOUS]),
                owned=rng.choice([*Owned]),
                lost=rng.random() < 0.2,
            )
        ]

    def leave(self) -> list[Step]:
        """Let a member leave, or one that never existed."""
        rng = self.rng
        if rng.random() < 0.1:
            return [StreamsBeat(member="stranger", epoch=-1, shutdown=rng.random() < 0.3)]
        name = self._member()
        if name in self._joined:
            self._joined.remove(name)
        return [StreamsBeat(member=name, epoch=-1, shutdown=rng.random() < 0.1)]

    def shut_down(self) -> list[Step]:
        """Let a member ask all members to stop."""
        asks = StreamsBeat(member=self._member(), owned=Owned.ASSIGNED, shutdown=True)
        return [asks, *self.steady(), *self.steady()]

    def bad_request(self) -> list[Step]:
        """Send a request that no member sends."""
        rng = self.rng
        name = self._member()
        joining = self._joining(rng.choice(self._names))
        wrong: list[Step] = [
            StreamsBeat(member=name, incomplete=True, owned=Owned.ASSIGNED),
            StreamsBeat(member=name, instance="i"),
            StreamsBeat(member=name, rack=" "),
            StreamsBeat(member=name, epoch=rng.choice([-2, -3])),
            StreamsBeat(member=name, topology=self._topology),
            StreamsBeat(**{**joining, "rebalance_timeout_ms": -1}),
            StreamsBeat(**{**joining, "topology": None}),
            StreamsBeat(**{**joining, "owned": Owned.UNKNOWN}),
            StreamsBeat(**{**joining, "topology": rng.choice(_BAD)}),
            StreamsBeat(member=name, group=rng.choice([" ", "other"])),
            StreamsBeat(member=name, member_id=""),
        ]
        return [rng.choice(wrong)]

    def commit(self) -> list[Step]:
        """Send OffsetCommit and OffsetFetch, by a member at some epoch or by no member."""
        rng = self.rng
        member = rng.choice([None, self._member(), self._member()])
        epoch = rng.choice([Epoch.LAST, Epoch.LAST, *Epoch]) if member else -1
        topics = {rng.choice("xyw"): (0, 1)}
        if rng.random() < 0.6:
            return [CommitStep(topics=topics, member=member, epoch=epoch, version=rng.choice([8, 9, 9]))]
        return [Fetch(topics=topics, member=member, epoch=epoch, version=9)]

    def describe(self) -> list[Step]:
        """Send requests by which administrators describe groups."""
        states = self.rng.choice([(), ("stable",), ("not_ready", "empty")])
        questions: list[Step] = [
            DescribeStreams(),
            DescribeStreams(),
            DescribeStreams(group="other"),
            List(states=states, types=("Streams",)),
        ]
        return [self.rng.choice(questions)]

    def configure(self) -> list[Step]:
        """Change the number of standby tasks, perhaps to one that is not allowed."""
        count = self.rng.choice([0, 1, 2, 2, 3])
        return [Configure(values={"streams.num.standby.replicas": str(count)}), *self.round()]

    def delete_group(self) -> list[Step]:
        """Send DeleteGroups, alone or once all members have left."""
        if self.rng.random() < 0.5:
            return [DeleteGroup()]
        leaves: list[Step] = [StreamsBeat(member=name, epoch=-1) for name in self._joined]
        self._joined.clear()
        return [*leaves, DescribeStreams(), DeleteGroup(), DescribeStreams()]

    def change_topics(self) -> list[Step]:
        """Create, grow or delete topics, and let some member's heartbeat notice."""
        rng = self.rng
        changes: list[Step] = [
            CreateTopicStep(topic=rng.choice([MISSING, "n"]), partitions=rng.randint(1, 3)),
            Grow(topic=rng.choice("xyw"), partitions=rng.randint(5, 8)),
            DeleteTopicStep(topic=rng.choice(["x", "y", "w", MISSING])),
        ]
        return [rng.choice(changes), *self.steady(), *self.round()]
