"""Random schedules of the classic protocol: in classic groups, and in groups that are migrated and back."""

from __future__ import annotations

import random
from collections.abc import Callable

from fencepost.simulation.lab.conform.generate import TOPICS
from fencepost.simulation.lab.conform.schedule import (
    AwaitStep,
    Beat,
    ClassicBeat,
    ClassicJoinStep,
    ClassicSyncStep,
    CommitStep,
    DeleteGroup,
    Describe,
    DescribeClassic,
    Epoch,
    Fetch,
    Forget,
    List,
    Owned,
    Remove,
    Removed,
    Schedule,
    Step,
)

_NAMES = "ABCDE"
_MODERN = "MN"
_INSTANCES = {"A": "i1", "B": "i2", "C": "i1"}
"""Members that are static, if the schedule has any; C comes back for A."""
_PROTOCOLS = (("range",), ("range", "sticky"), ("sticky", "range"), ("cooperative-sticky", "range"))
_MORE_MS = 500
"""Time in addition to that for which a group waits for its first members."""

Make = Callable[["_Generator"], list[Step]]


def generate_classic(seed: str, initial_delay_ms: int) -> Schedule:
    """Return the random schedule of that seed. A group waits `initial_delay_ms` for its first members."""
    return _Generator(random.Random(f"classic {seed}"), seed, initial_delay_ms).schedule()


class _Generator:
    def __init__(self, rng: random.Random, seed: str, initial_delay_ms: int) -> None:
        self.rng = rng
        self._seed = seed
        self._first = AwaitStep(ms=initial_delay_ms + _MORE_MS)
        self._names = rng.sample(_NAMES, rng.randint(1, 4))
        self._static = _INSTANCES if rng.random() < 0.4 else {}
        self._topics = tuple(rng.sample("xyzw", rng.randint(1, 2)))
        self._protocols = rng.choice(_PROTOCOLS)
        self._owned = Owned.ASSIGNED if self._protocols[0] == "cooperative-sticky" else Owned.NULL
        self._migrates = rng.random() < 0.6
        self._joined: list[str] = []
        self._modern: list[str] = []

    def schedule(self) -> Schedule:
        rng = self.rng
        steps: list[Step] = []
        if self._migrates and rng.random() < 0.3:
            steps += self.modern_join()
        steps += [*self.join(), self._first, *self.round()]
        length = rng.randint(20, 50)
        makes, weights = zip(*self._weights(), strict=True)
        while len(steps) < length:
            steps += rng.choices(makes, weights)[0](self)
        steps += [Describe(), DescribeClassic(), List()]
        return Schedule(name=f"random classic {self._seed}", topics=TOPICS, steps=tuple(steps))

    def _weights(self) -> list[tuple[Make, float]]:
        table: list[tuple[Make, float]] = [
            (_Generator.join, 8),
            (_Generator.round, 16),
            (_Generator.alive, 12),
            (_Generator.rejoin, 6),
            (_Generator.sync, 6),
            (_Generator.odd, 6),
            (_Generator.leave, 4),
            (_Generator.commit, 5),
            (_Generator.describe, 4),
            (_Generator.remove, 1.5),
            (_Generator.end, 0.7),
        ]
        if self._migrates:
            table += [(_Generator.modern_join, 5), (_Generator.modern_beat, 12), (_Generator.modern_leave, 4)]
        return table

    def _member(self) -> str:
        return self.rng.choice(self._joined or self._names)

    def _joining(self, name: str, **fields: object) -> ClassicJoinStep:
        rng = self.rng
        others = rng.random() < 0.15
        chosen: dict[str, object] = {
            "protocols": rng.choice(_PROTOCOLS) if rng.random() < 0.1 else self._protocols,
            "topics": tuple(rng.sample("xyzw", rng.randint(1, 2))) if others else self._topics,
            "owned": self._owned,
            "instance": self._static.get(name),
            **fields,
        }
        return ClassicJoinStep(member=name, **chosen)  # type: ignore[arg-type]

    def join(self) -> list[Step]:
        """Let a new member join, which may be a static one that returns as another process."""
        rng = self.rng
        waiting = [name for name in self._names if name not in self._joined]
        if not waiting:
            return self.rejoin()
        name = rng.choice(waiting)
        self._joined.append(name)
        version = rng.choice([9, 9, 9, 9, 8, 5, 4])
        if name in self._static:
            heirs = [other for other in self._joined if self._static.get(other) == self._static[name]]
            self._joined = [other for other in self._joined if other not in heirs or other == name]
            return [self._joining(name, version=max(version, 5))]
        if rng.random() < 0.1:
            return [self._joining(name, version=rng.choice([0, 2, 3]))]
        return [
            self._joining(name, version=version),
            *(self.alive() if rng.random() < 0.2 else []),
            self._joining(name, version=version, lost=rng.random() < 0.03),
        ]

    def rejoin(self) -> list[Step]:
        """Let a member join again, because it was told to or for a reason of its own."""
        return [self._joining(self._member(), owned=self.rng.choice([self._owned, *Owned]))]

    def _shares(self) -> dict[str, dict[str, tuple[int, ...]]]:
        """Return partitions for all joined members: a whole assignment, or one that leaves a member out."""
        given: dict[str, dict[str, list[int]]] = {name: {} for name in self._joined}
        for topic in self._topics:
            for number in range(TOPICS[topic]):
                if given:
                    given[self.rng.choice(self._joined)].setdefault(topic, []).append(number)
        return {
            name: {topic: tuple(numbers) for topic, numbers in topics.items()}
            for name, topics in given.items()
        }

    def _syncing(self, name: str) -> ClassicSyncStep:
        return ClassicSyncStep(member=name, gives=self._shares(), instance=self._static.get(name))

    def sync(self) -> list[Step]:
        """Let a member ask for its assignment."""
        return [self._syncing(self._member())]

    def round(self) -> list[Step]:
        """Let all members join again and take their assignment, each in an order of its own."""
        rng = self.rng
        joining = rng.sample(self._joined, len(self._joined))
        syncing = rng.sample(self._joined, len(self._joined))
        asked = [ClassicBeat(member=name, instance=self._static.get(name)) for name in joining]
        return [
            *(asked if rng.random() < 0.5 else []),
            *map(self._joining, joining),
            *map(self._syncing, syncing),
        ]

    def alive(self) -> list[Step]:
        """Send a heartbeat."""
        name = self._member()
        return [ClassicBeat(member=name, instance=self._static.get(name))]

    def odd(self) -> list[Step]:
        """Send a request that is wrong in one way."""
        rng = self.rng
        name = self._member()
        wrong = rng.choice(["member", "generation", "instance", "protocol", "session", "type", "group"])
        generations: list[Epoch | int] = [Epoch.PREVIOUS, Epoch.AHEAD, 0, -1]
        generation = rng.choice(generations)
        other = rng.choice(["i1", "i9"])
        steps: dict[str, list[Step]] = {
            "member": [
                self._joining(name, member_id="stranger"),
                ClassicSyncStep(member=name, member_id="stranger"),
                ClassicBeat(member=name, member_id="stranger"),
            ],
            "generation": [
                ClassicSyncStep(member=name, generation=generation),
                ClassicBeat(member=name, generation=generation),
            ],
            "instance": [
                ClassicSyncStep(member=name, instance=other),
                ClassicBeat(member=name, instance=other),
                CommitStep(member=name, topics={"x": (0,)}, instance=other),
            ],
            "protocol": [
                self._joining("Z", protocols=("other",), instance=None),
                ClassicSyncStep(member=name, protocol=rng.choice([None, "other"])),
            ],
            "session": [self._joining("Z", session_timeout_ms=rng.choice([1, 10**9]), instance=None)],
            "type": [
                self._joining("Z", protocol_type="connect", instance=None),
                ClassicSyncStep(member=name, protocol_type=rng.choice([None, "connect"])),
            ],
            "group": [
                self._joining(name, group=rng.choice(["", "other"]), member_id="stranger"),
                ClassicBeat(member=name, group=rng.choice(["", "other"])),
            ],
        }
        return [rng.choice(steps[wrong])]

    def leave(self) -> list[Step]:
        """Let a member leave. If it comes back, it has another id."""
        name = self._member()
        if name in self._joined:
            self._joined.remove(name)
        instance = self._static.get(name) if self.rng.random() < 0.5 else None
        return [Remove(members=(Removed(member=name, instance=instance),))]

    def remove(self) -> list[Step]:
        """Let an administrator remove several members, some of which do not exist."""
        rng = self.rng
        some = [
            Removed(
                member=rng.choice([self._member(), "stranger", ""]), instance=rng.choice([None, "i1", "i9"])
            )
            for _ in range(rng.choice([1, 2, 3]))
        ]
        return [Remove(members=tuple(some))]

    def commit(self) -> list[Step]:
        """Send OffsetCommit, OffsetFetch or OffsetDelete."""
        rng = self.rng
        member = rng.choice([None, self._member(), self._member()])
        epoch = rng.choice([Epoch.LAST, Epoch.LAST, *Epoch]) if member else -1
        topics = {rng.choice("xyw"): (0, 1)}
        steps: list[Step] = [
            CommitStep(topics=topics, member=member, epoch=epoch, version=rng.choice([2, 7, 8, 9, 9])),
            CommitStep(topics=topics, member=member, epoch=epoch),
            Fetch(topics=topics, member=member, epoch=epoch),
            Forget(topics=topics),
        ]
        return [rng.choice(steps)]

    def describe(self) -> list[Step]:
        """Send requests by which administrators describe groups."""
        rng = self.rng
        steps: list[Step] = [
            DescribeClassic(version=rng.choice([4, 5, 6])),
            DescribeClassic(),
            Describe(),
            List(types=rng.choice([(), ("classic",), ("consumer",)])),
            List(states=rng.choice([("stable",), ("PreparingRebalance", "CompletingRebalance")])),
        ]
        return [rng.choice(steps)]

    def end(self) -> list[Step]:
        """Let all members leave; the group may be deleted."""
        members = [*self._joined, *self._modern]
        if not members:
            return [DeleteGroup()]
        self._joined.clear()
        self._modern.clear()
        everybody = Remove(members=tuple(Removed(member=name) for name in members))
        begun = [*self.join(), self._first]
        return [everybody, DescribeClassic(), *([DeleteGroup()] if self.rng.random() < 0.5 else []), *begun]

    def modern_join(self) -> list[Step]:
        """Let a consumer join with the newer protocol."""
        rng = self.rng
        waiting = [name for name in _MODERN if name not in self._modern]
        if not waiting:
            return self.modern_beat()
        name = rng.choice(waiting)
        self._modern.append(name)
        return [
            Beat(
                member=name,
                epoch=0,
                owned=Owned.EMPTY,
                names=self._topics,
                rebalance_timeout_ms=30_000,
                assignor="range",
            )
        ]

    def modern_beat(self) -> list[Step]:
        """Let a consumer of the newer protocol confirm what it has."""
        if not self._modern:
            return self.alive()
        return [Beat(member=self.rng.choice(self._modern), owned=Owned.ASSIGNED)]

    def modern_leave(self) -> list[Step]:
        """Let a consumer of the newer protocol leave; the last one may leave a classic group behind."""
        if not self._modern:
            return self.alive()
        name = self.rng.choice(self._modern)
        self._modern.remove(name)
        return [Beat(member=name, epoch=-1)]
