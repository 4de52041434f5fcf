"""Views of one run, found row by row in plain Python as docs/traces.md has the columns.

It shares nothing with the SQL of the views. Each function returns the view's rows without the run's id, in
any order.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, TypeAlias

from tests.unit.simulation.analyses.plain_arithmetic import Row, Told, by_partition

Found: TypeAlias = list[tuple[Any, ...]]

SETTLED = ("Stable", "Empty", "Dead")
OF_PROCESSES = ("crash", "stopped", "start")


def _bytes(row: Row) -> int | None:
    detail: str = row["detail"]
    if row["kind"] != "heartbeat":
        return 0
    if found := re.search(r"(\d+)\+(\d+)$", detail):
        return int(found[1]) + int(found[2])
    return 103 + len(row["actor"]) + len(row["group"]) if detail == "keepalive" else None


def rebalances(rows: Sequence[Row]) -> Found:
    """Group, begin, end, last state, cause, raises, heartbeats, bytes, first row, whether it forms."""
    found: Found = []
    under_way: dict[str, list[Row]] = {}
    joined = all_joined(rows)
    last: dict[str, str] = {}
    settled: dict[str, str | None] = {}

    def close(group: str, end: Row | None) -> None:
        span = under_way.pop(group)
        sizes = [_bytes(row) for row in span]
        kinds = Counter(row["kind"] for row in span)
        cause = next(row["detail"] for row in span if row["kind"] == "group.epoch")
        found.append(
            (
                group,
                span[0]["t_us"],
                None if end is None else end["t_us"],
                None if end is None else end["state_to"],
                cause,
                kinds["group.epoch"],
                kinds["heartbeat"],
                None if None in sizes else sum(size or 0 for size in sizes),
                span[0]["seq"],
                settled[group] != "Stable" or (joined is not None and span[0]["seq"] < joined),
            )
        )
        if end is not None:
            last[group] = end["state_to"]

    for row in rows:
        if row["kind"] not in ("group.epoch", "group.state", "heartbeat"):
            continue
        group = row["group"]
        if row["kind"] == "group.epoch":
            if group not in under_way:
                settled[group] = last.get(group)
            under_way.setdefault(group, [])
        if group in under_way:
            under_way[group].append(row)
            if row["kind"] != "heartbeat" and row["state_to"] in SETTLED:
                close(group, row)
        elif row["kind"] == "group.state" and row["state_to"] in SETTLED:
            last[group] = row["state_to"]
    for group in list(under_way):
        close(group, None)
    return found


def first_members(rows: Sequence[Row]) -> list[str] | None:
    """The members that started first; None unless the trace has their number and as many starts."""
    start = next((row for row in rows if row["kind"] == "run.start"), None)
    words = [] if start is None else start["detail"].split()
    if len(words) < 3 or not words[2].isdigit():
        return None
    started = [row["actor"] for row in rows if row["kind"] == "host" and row["detail"] == "start"]
    first = list(dict.fromkeys(started))[: int(words[2])]
    return first if len(first) == int(words[2]) else None


def all_joined(rows: Sequence[Row]) -> int | None:
    """The row with which the last of the first members had joined."""
    waited = set(first_members(rows) or ())
    for row in rows:
        joins = row["kind"] == "heartbeat" and not row["error"] and row["detail"].split(" ")[0] == "join"
        if joins and row["actor"] in waited:
            waited.remove(row["actor"])
            if not waited:
                return int(row["seq"])
    return None


def moves(rows: Sequence[Row], told: Told) -> Found:
    """Group, begin, moved, first and least of each rebalance that ended in Stable."""
    groups = {row["seq"]: row["group"] for row in rows}
    found: Found = []
    by_group: dict[str, Found] = defaultdict(list)
    for span in rebalances(rows):
        by_group[span[0]].append(span)
    for group, spans in by_group.items():
        spans.sort(key=lambda span: span[-2])
        begins = [span[-2] for span in spans]
        given = [
            each
            for each in told.tenures
            if groups[each.seq] == group and not each.fenced and each.actor not in told.streams
        ]
        owner: dict[Any, str] = {}
        for number, span in enumerate(spans):
            until = begins[number + 1] if number + 1 < len(begins) else 1 << 62
            after = {each.partition: each.actor for each in given if begins[number] <= each.seq < until}
            gain: Counter[str] = Counter()
            moved = first = 0
            for part, actor in after.items():
                before = owner.get(part)
                if before == actor:
                    continue
                gain[actor] += 1
                if before is None:
                    first += 1
                else:
                    moved += 1
                    gain[before] -= 1
            owner |= after
            if span[3] == "Stable" and not span[-1]:
                least = max(sum(each for each in gain.values() if each > 0) - first, 0)
                found.append((group, span[1], moved, first, least))
    return found


Mark: TypeAlias = tuple[int, int | None, tuple[int, int, int | None] | None]
"""The number of a row, when the partition was handed over there, or the batch that was processed."""


def _marks(rows: Sequence[Row], told: Told) -> dict[Any, list[Mark]]:
    marks: dict[Any, list[Mark]] = defaultdict(list)
    for _, tenures in by_partition(told):
        latest = -1
        for number, each in enumerate(tenures):
            if number and latest >= 0:
                marks[each.partition].append((each.seq, each.begin, None))
            latest = max(latest, each.reads_until)
    for row in rows:
        if row["kind"] == "records":
            match = re.fullmatch(r"(\d+)\.\.(\d+)(?: of (\d+))?.*", row["detail"])
            assert match is not None, row["detail"]
            batch = int(match[1]), int(match[2]), None if match[3] is None else int(match[3])
            for part in row["partitions"]:
                marks[part["topic"], part["partition"]].append((row["seq"], None, batch))
    return marks


def recoveries(rows: Sequence[Row], told: Told) -> Found:
    """Partition, handover, lag, time until it had caught up, and records again."""
    times = {row["seq"]: row["t_us"] for row in rows}
    found: Found = []
    for part, its in _marks(rows, told).items():
        its.sort(key=lambda mark: mark[0])
        done: int | None = None
        current: dict[str, Any] | None = None
        for seq, handed_us, batch in its:
            if batch is None:
                current = {"from": handed_us, "batches": 0, "lag": None, "at": None, "again": 0}
                found.append((part, current))
                continue
            first, end, log_end = batch
            if current is not None:
                if not current["batches"] and log_end is not None:
                    current["lag"] = log_end - first
                if log_end is not None and log_end - end <= end - first and current["at"] is None:
                    current["at"] = times[seq]
                current["again"] += max(min(end, first if done is None else done) - first, 0)
                current["batches"] += 1
            done = end if done is None else max(done, end)
    return [
        (*part, its["from"], its["lag"], None if its["at"] is None else its["at"] - its["from"], its["again"])
        for part, its in found
        if its["batches"]
    ]


def stays(rows: Sequence[Row], told: Told) -> Found:
    """State, number of stays of members in it, their microseconds, and the longest."""
    end = max(row["t_us"] for row in rows)
    found: dict[str, list[int]] = defaultdict(list)
    inside: dict[str, tuple[str, int]] = {}

    def leave(actor: str, now: int) -> None:
        if actor in inside:
            state, since = inside.pop(actor)
            found[state].append(now - since)

    for row in rows:
        if row["kind"] == "member.state":
            leave(row["actor"], row["t_us"])
            inside[row["actor"]] = row["state_to"], row["t_us"]
        elif row["kind"] == "host" and row["detail"] in OF_PROCESSES:
            for actor in [each for each in inside if told.host(each) == row["actor"]]:
                leave(actor, row["t_us"])
    for actor in list(inside):
        leave(actor, end)
    return [(state, len(each), sum(each), max(each)) for state, each in found.items()]


def transitions(rows: Sequence[Row], told: Told) -> Found:
    """Machine, states and the microseconds in the first of them, of each move."""
    names = {
        "group.state": "group",
        "sac.consumer": "sac-consumer",
        "client.state": "stream-client",
        "thread.state": "stream-thread",
    }
    found: Found = []
    last: dict[tuple[str, str], tuple[str, int]] = {}
    for row in rows:
        kind, actor = row["kind"], row["actor"]
        member = "sac-member" if actor in told.streams else "member"
        if kind == "host" and row["detail"] == "start":
            last.pop((member, actor), None)
        elif kind in names or kind == "member.state":
            machine = names.get(kind, member)
            each = actor
            if kind == "group.state":
                each = row["group"]
            elif kind == "sac.consumer":
                each = " ".join([actor, *row["detail"].split(" ")[1:2]])
            before = last.get((machine, each))
            stayed = row["t_us"] - before[1] if before and before[0] == row["state_from"] else None
            found.append((machine, row["state_from"], row["state_to"], stayed))
            last[machine, each] = row["state_to"], row["t_us"]
    return found


def formation(rows: Sequence[Row]) -> int | None:
    """When all members of the start were STABLE at the group's epoch for the first time."""
    first = first_members(rows)
    state: dict[str, str] = {}
    epoch: dict[str, int] = {}
    group_epoch: int | None = None
    for row in rows:
        actor = row["actor"]
        if row["kind"] == "group.epoch":
            group_epoch = row["group_epoch"]
        elif row["kind"] == "heartbeat" and row["error"] == "":
            epoch[actor] = row["member_epoch"]
        elif row["kind"] == "member.state" or (row["kind"] == "host" and row["detail"] in OF_PROCESSES):
            state[actor] = row["state_to"]
        else:
            continue
        if (
            first is not None
            and group_epoch is not None
            and all(state.get(each) == "STABLE" and epoch.get(each) == group_epoch for each in first)
        ):
            return int(row["t_us"])
    return None
