"""Readers and holders of partitions, counted row by row in plain Python as docs/traces.md has the columns.

It shares nothing with the SQL of the analyses: both are to find the same. Times are in microseconds.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Partition: TypeAlias = tuple[str, int]
Row: TypeAlias = Mapping[str, Any]

END = 1 << 62
"""The end of a stretch that the trace does not see."""
PROCESS_ENDS = ("crash", "stopped", "start")
CLASSIC_ID = re.compile(r"(.+?)-(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[\w-]{22})")
"""The id of a classic member: its client id, then what Kafka or the simulator adds to it."""
ACTIVE_LIKE = ("CONNECTED_ACTIVE", "CONNECTED_DEACTIVATING", "DISCONNECTED_ACTIVE")


@dataclass
class Tenure:
    """One member with one partition, from the end of `assigned` on."""

    actor: str
    host: str
    partition: Partition
    seq: int
    begin: int
    fenced: bool
    reads_until: int = END
    cause: str = ""
    holds_until: int = END
    believes_until: int = END

    def stop_reading(self, now: int, cause: str) -> None:
        if self.reads_until == END:
            self.reads_until, self.cause = now, cause

    def fence(self, now: int) -> None:
        self.stop_reading(now, "fenced")
        self.holds_until = min(self.holds_until, now)

    def let_go(self, now: int, cause: str) -> None:
        self.stop_reading(now, cause)
        self.holds_until = min(self.holds_until, now)
        self.believes_until = min(self.believes_until, now)


@dataclass
class Fencing:
    """A member that was removed, or refused."""

    cause: str
    host: str
    at: int
    stable_at: int | None = None


@dataclass
class Told:
    """What one trace tells."""

    tenures: list[Tenure] = field(default_factory=list)
    fencings: list[Fencing] = field(default_factory=list)
    violations: Counter[str] = field(default_factory=Counter)
    born: dict[Partition, list[int]] = field(default_factory=lambda: defaultdict(list))
    """When each partition came to be."""
    coordinator: list[tuple[Partition, int, int, bool, bool]] = field(default_factory=list)
    """What the coordinator counted as a member's: partition, begin, end, if single active, if it reads."""
    end: int = 0
    sac: bool = False
    streams: set[str] = field(default_factory=set)
    """The actors of single active consumers, `HOST/STREAM`; ids of other members may have a slash as well."""

    def host(self, actor: str) -> str:
        """The process of a member."""
        return actor.partition("/")[0] if actor in self.streams else actor


def told_by(rows: Iterable[Row]) -> Told:
    """Read a trace from its first row to its last."""
    reading = _Reading()
    for row in rows:
        reading.take(row)
    return reading.finish()


class _Reading:
    def __init__(self) -> None:
        self.told = Told()
        self.open: dict[tuple[str, Partition], Tenure] = {}
        self.fenced: set[str] = set()
        self.states: dict[str, str] = {}
        """Of each host that runs."""
        self.members: dict[str, str] = {}
        """The host of each member id that was assigned anything."""
        self.waiting: dict[str, list[Fencing]] = defaultdict(list)
        self.counted: dict[str, tuple[int, tuple[Partition, ...], bool, bool]] = {}

    def take(self, row: Row) -> None:
        self.told.end = max(self.told.end, row["t_us"])
        take = getattr(self, "_" + row["kind"].replace(".", "_"), None)
        if take is not None:
            parts = tuple((each["topic"], each["partition"]) for each in row["partitions"])
            take(row, row["t_us"], row["actor"], parts)

    def finish(self) -> Told:
        for key in list(self.counted):
            self._counts(key, END, (), sac=False, reads=False)
        return self.told

    # -- members --

    def _begin(self, row: Row, actor: str, part: Partition) -> None:
        host = self.told.host(actor)
        tenure = Tenure(actor, host, part, row["seq"], row["t_us"], host in self.fenced)
        if (before := self.open.get((actor, part))) is not None:
            before.let_go(row["t_us"], "assigned")
        if tenure.fenced:
            tenure.fence(row["t_us"])
        self.open[actor, part] = tenure
        self.told.tenures.append(tenure)

    def _let_go(self, now: int, actor: str, parts: Iterable[Partition], cause: str) -> None:
        for part in parts:
            if (tenure := self.open.pop((actor, part), None)) is not None:
                tenure.let_go(now, cause)

    def _stop(self, now: int, actor: str, parts: Iterable[Partition], cause: str) -> None:
        for part in parts:
            if (tenure := self.open.get((actor, part))) is not None:
                tenure.stop_reading(now, cause)

    def _callback_begin(self, row: Row, now: int, actor: str, parts: tuple[Partition, ...]) -> None:
        if row["detail"] == "revoked":
            self._stop(now, actor, parts, "revoked")
        elif row["detail"] == "lost" and actor not in self.told.streams:
            self._let_go(now, actor, parts, "lost")

    def _callback_end(self, row: Row, now: int, actor: str, parts: tuple[Partition, ...]) -> None:
        if row["error"]:
            return
        if row["detail"] == "assigned":
            for part in parts:
                self._begin(row, actor, part)
        elif row["detail"] == "revoked":
            self._let_go(now, actor, parts, "revoked")

    def _member_state(self, row: Row, now: int, actor: str, parts: tuple[Partition, ...]) -> None:
        before, after = row["state_from"], row["state_to"]
        if after == "CONNECTING":
            self.told.streams.add(actor)
        self.states[actor] = after
        if after == "STABLE":
            for fencing in self.waiting.pop(actor, ()):
                fencing.stable_at = now
        if after == "ACTIVE":
            self.told.sac = True
            for part in parts:
                self._begin(row, actor, part)
        elif after == "STEPPING_DOWN":
            self._stop(now, actor, parts, "stepped down")
        elif before in ("ACTIVE", "STEPPING_DOWN"):
            self._let_go(now, actor, parts, "lost" if after == "LOST" else "stepped down")

    def _host(self, row: Row, now: int, actor: str, parts: tuple[Partition, ...]) -> None:
        if row["detail"] not in PROCESS_ENDS:
            return
        self.fenced.discard(actor)
        self.states.pop(actor, None)
        for key, tenure in list(self.open.items()):
            if tenure.host == actor:
                del self.open[key]
                tenure.let_go(now, "stopped" if row["detail"] == "stopped" else "crash")

    # -- the coordinator --

    def _heartbeat(self, row: Row, now: int, actor: str, parts: tuple[Partition, ...]) -> None:
        if not row["error"] and row["detail"].split()[0] in ("join", "full"):
            self.fenced.discard(actor)
        elif row["error"] in ("FENCED_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID"):
            self._fencing(Fencing(row["error"], actor, now))

    def _member_removed(self, row: Row, now: int, actor: str, parts: tuple[Partition, ...]) -> None:
        self.fenced.add(actor)
        for tenure in self.open.values():
            if tenure.host == actor:
                tenure.fence(now)
        if row["detail"] == "left":
            return
        host = self.members.get(actor, actor)
        if host == actor and actor not in self.states and (named := CLASSIC_ID.fullmatch(actor)):
            host = named[1]
        fencing = Fencing(row["detail"], host, now)
        if host != actor and self.states.get(host) == "STABLE":
            fencing.stable_at = now
            self.told.fencings.append(fencing)
        else:
            self._fencing(fencing)

    def _fencing(self, fencing: Fencing) -> None:
        self.told.fencings.append(fencing)
        self.waiting[fencing.host].append(fencing)

    def _assignment(self, row: Row, now: int, actor: str, parts: tuple[Partition, ...]) -> None:
        member_id = row["detail"]
        if actor != member_id:
            self.members[member_id] = actor
        self._counts(member_id, now, parts, sac=False, reads=True)

    def _sac_consumer(self, row: Row, now: int, actor: str, parts: tuple[Partition, ...]) -> None:
        status = row["state_to"]
        held = parts if status in ACTIVE_LIKE else ()
        key = f"{actor} {row['detail'].split(' ', 1)[1]}"
        self._counts(key, now, held, sac=True, reads=status != "CONNECTED_DEACTIVATING")

    def _counts(self, key: str, now: int, parts: tuple[Partition, ...], *, sac: bool, reads: bool) -> None:
        if key in self.counted:
            begin, before, was_sac, read = self.counted.pop(key)
            self.told.coordinator += [(part, begin, now, was_sac, read) for part in before]
        if parts:
            self.counted[key] = now, parts, sac, reads

    # -- the world around --

    def _topic(self, row: Row, now: int, actor: str, parts: tuple[Partition, ...]) -> None:
        what, count = row["detail"].split()
        if what == "deleted":
            for key, tenure in list(self.open.items()):
                if tenure.partition[0] == actor:
                    del self.open[key]
                    tenure.let_go(now, "topic deleted")
        else:
            for number in range(int(count)):
                if what == "created" or not self.told.born[actor, number]:
                    self.told.born[actor, number].append(now)

    def _violation(self, row: Row, now: int, actor: str, parts: tuple[Partition, ...]) -> None:
        self.told.violations[row["error"]] += 1


# -- figures ----------------------------------------------------------------------------------------------


def by_partition(told: Told) -> Iterator[tuple[int, list[Tenure]]]:
    """Each partition's birth and its owners in their order; a topic that is made again has others."""
    found: dict[tuple[Partition, int], list[Tenure]] = defaultdict(list)
    for tenure in told.tenures:
        if not tenure.fenced:
            births = [at for at in told.born[tenure.partition] if at <= tenure.begin]
            found[tenure.partition, max(births, default=0)].append(tenure)
    for (_, born), tenures in found.items():
        yield born, tenures


def two_owners(told: Told) -> list[int]:
    """Each time a partition was given to one member while another held it: until one of the two let go."""
    shared = []
    for _, tenures in by_partition(told):
        for number, tenure in enumerate(tenures):
            until = max((min(each.holds_until, told.end) for each in tenures[:number]), default=0)
            if (lasts := min(until, tenure.holds_until) - tenure.begin) > 0:
                shared.append(lasts)
    return shared


def downtime(told: Told) -> dict[str, list[int]]:
    """By cause: from the moment the last reader stopped until the next one may read."""
    found = defaultdict(list)
    for _, tenures in by_partition(told):
        for number, tenure in enumerate(tenures[1:], 1):
            last = max(tenures[:number], key=lambda each: each.reads_until)
            if last.reads_until <= tenure.begin:
                found[last.cause].append(tenure.begin - last.reads_until)
    return dict(found)


def first_waits(told: Told) -> list[int]:
    """How long partitions waited for their first owner."""
    return [tenures[0].begin - born for born, tenures in by_partition(told)]


def shares(spans: Iterable[tuple[Partition, int, int]], end: int) -> dict[int, int]:
    """How long all partitions together had how many owners, each since its first one."""
    return Counter(dict(_lengths(spans, end)[0]))


def gaps(spans: Iterable[tuple[Partition, int, int]], end: int) -> tuple[list[int], list[int]]:
    """The stretches without anybody between two, and those that the trace cuts off."""
    return _lengths(spans, end)[1:]


def _lengths(
    spans: Iterable[tuple[Partition, int, int]], end: int
) -> tuple[Counter[int], list[int], list[int]]:
    edges: dict[Partition, Counter[int]] = defaultdict(Counter)
    for part, begin, until in spans:
        if begin < min(until, end):
            edges[part][begin] += 1
            edges[part][min(until, end)] -= 1
    lengths: Counter[int] = Counter()
    closed, cut = [], []
    for changes in edges.values():
        moments = [at for at in sorted(changes) if changes[at] and at < end]
        count = 0
        for at, until in zip(moments, [*moments[1:], end], strict=True):
            count += changes[at]
            lengths[count] += until - at
            if not count:
                (cut if at == moments[-1] else closed).append(until - at)
    return lengths, closed, cut
