"""Compares a step of the coordinator with the model, and what it derives from its groups with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from fencepost.coordinator.protocol import sac
from fencepost.coordinator.protocol.outcome import DeadlineReached
from fencepost.coordinator.protocol.sac_records import SacGroupValue
from fencepost.coordinator.sac.coordinator import SacInput, SacOutcome
from fencepost.coordinator.sac.state import SacState
from fencepost.simulation.judge.base import Finding
from fencepost.simulation.sac import model


def read(state: SacState) -> model.SacModel:
    """Return what a coordinator keeps. The model times lost connections by itself."""
    index = model.members_of(state.groups)
    index.update((connection, frozenset(keys)) for connection, keys in state.strays.items())
    indexed = {connection: keys for connection, keys in index.items() if keys}
    return model.SacModel(dict(state.groups), indexed, state.conf, {})


def expected(
    before: model.SacModel, event: SacInput, after: model.SacModel, now_ms: int
) -> model.SacExpectation:
    """Return what must follow from an event, if the coordinator chose what the state after it shows."""
    choice = None
    if isinstance(event, DeadlineReached):
        choice = min(_lost(before) - _lost(after), default=None)
    return model.expect(before, event, choice, now_ms)


def _lost(known: model.SacModel) -> set[sac.ConnectionId]:
    members = (one for group in known.groups.values() for one in group.consumers)
    return {one.connection for one in members if one.status in model.LOST}


# -- differences --------------------------------------------------------------------------------------------


def differences(
    event: SacInput, right: model.SacExpectation, got: model.SacModel, outcome: SacOutcome
) -> Iterator[Finding]:
    """Yield each invariant that a step breaks."""
    at, after = type(event).__name__, right.after
    is_refused = right.reply is not None and right.reply.error is not None
    if outcome.reply != right.reply:
        yield "sac-replies", f"{at}: expected {right.reply}, got {outcome.reply}"
    for key in dict.fromkeys((*after.groups, *got.groups)):
        wanted, group = after.groups.get(key), got.groups.get(key)
        if group is not wanted and (seen := _seen(group)) != (due := _seen(wanted)):
            for invariant in ("sac-replies",) if is_refused else _broken(event, due, seen):
                yield invariant, f"{key.stream}, at {at}: expected {_told(wanted)}, got {_told(group)}"
    if got.connections != after.connections:
        ends = sorted({connection for connection, _ in got.connections.items() ^ after.connections.items()})
        yield "sac-derived", f"{at}: other groups than expected notice the end of {', '.join(ends)}"
    if got.conf != after.conf:
        yield "sac-timeout", f"{at}: expected the configuration {after.conf}, got {got.conf}"
    if outcome.effects != right.effects:
        yield from _asked(at, right.effects, outcome.effects)


def _seen(group: SacGroupValue | None) -> tuple[tuple[Any, ...], ...]:
    """Return a group's consumers as they are compared: the time of a status counts while one is lost."""
    if group is None:
        return ()
    index = group.partition_index
    return tuple(
        (*model.place(one), one.status, one.owner, index, one.since_ms * (one.status in model.LOST))
        for one in group.consumers
    )


def _told(group: SacGroupValue | None) -> str:
    members = () if group is None else group.consumers
    return (
        ", ".join(f"{one.connection}/{one.subscription_id} {one.status}" for one in members) or "no consumers"
    )


def _broken(
    event: SacInput, right: tuple[tuple[Any, ...], ...], got: tuple[tuple[Any, ...], ...]
) -> list[str]:
    """Return the invariants that a difference breaks: of the order if each consumer is as it should be."""
    wanted, found = ({one[:2]: one[2:] for one in consumers} for consumers in (right, got))
    broken = []
    for place in dict.fromkeys((*wanted, *found)):
        due, is_now = wanted.get(place), found.get(place)
        if due is not None and is_now is not None and due != is_now:
            statuses = due[0], is_now[0]
            choice = model.CONNECTED.issuperset(statuses) and due[0] is not is_now[0]
            early = isinstance(event, DeadlineReached)
            broken.append("sac-choice" if choice else "sac-timeout" if early else "sac-cause")
        elif due != is_now:
            broken.append("sac-stale-node" if due is None and isinstance(event, sac.Tick) else "sac-cause")
    return list(dict.fromkeys(broken or ["sac-choice"]))


def _asked(at: str, right: tuple[sac.SacEffect, ...], got: tuple[sac.SacEffect, ...]) -> Iterator[Finding]:
    """Yield differences of what is sent and watched. Only messages to one group have an order."""
    due, sent = (
        sorted(
            (one for one in effects if isinstance(one, sac.NotifyConsumer)),
            key=lambda one: (one.stream, one.consumer_name),
        )
        for effects in (right, got)
    )
    if due != sent:
        yield "sac-told", f"{at}: expected the messages {due}, got {sent}"
    missing, extra = (Counter(right) - Counter(got)), (Counter(got) - Counter(right))
    for what, effects in (("lacks", missing), ("has unexpected", extra)):
        if watched := [one for one in effects if not isinstance(one, sac.NotifyConsumer)]:
            yield "sac-watched", f"{at} {what} {watched}"


def derived(known: model.SacModel, state: SacState) -> Iterator[Finding]:
    """Yield what a coordinator derives from its groups in another way than the model."""
    groups_of: dict[sac.ConnectionId, Counter[Any]] = {}
    nodes: dict[str, set[sac.ConnectionId]] = {}
    away: dict[sac.ConnectionId, dict[Any, int]] = {}
    for key, group in known.groups.items():
        for one in group.consumers:
            groups_of.setdefault(one.connection, Counter())[key] += 1
            nodes.setdefault(sac.node_of(one.connection), set()).add(one.connection)
            if one.status in model.LOST:
                away.setdefault(one.connection, {})[key] = one.since_ms
    kept = state.hard_state()
    for what, right, got in (
        ("groups of connections", groups_of, kept["groups_of"]),
        ("connections of nodes", nodes, kept["nodes"]),
        ("lost connections", away, kept["away"]),
        ("timers", set(known.deadlines), set(state.timers)),
    ):
        if got != right:
            yield "sac-derived", f"{what}: expected {right}, got {got}"
