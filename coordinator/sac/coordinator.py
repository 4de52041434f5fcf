"""The coordinator of single active consumers: one pure object that takes events and returns outcomes.

It runs like the group coordinator: append the records of an outcome, apply them, then send the reply and
carry out the effects. It knows connections and nodes, never clients and offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import msgspec

from fencepost.coordinator.protocol import sac
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.outcome import DeadlineReached
from fencepost.coordinator.protocol.sac_records import (
    SacConfigurationKey,
    SacConfigurationValue,
    SacConnectionKey,
    SacConnectionValue,
    SacGroupKey,
    SacGroupValue,
    SacRecord,
)
from fencepost.coordinator.sac.draft import GroupDraft
from fencepost.coordinator.sac.state import SacState

SacInput: TypeAlias = sac.SacCommand | sac.SacEvent | DeadlineReached

OK = sac.SacReply()
_RETRY_MS = 1_000
"""Time after which a timer runs again if its records could not be written, in ms."""


class SacOutcome(msgspec.Struct, frozen=True, gc=False):
    """The value of one step."""

    records: tuple[SacRecord, ...] = ()
    """One atomic batch; to be durable before anything below is seen by anyone."""
    reply: sac.SacReply | None = None
    effects: tuple[sac.SacEffect, ...] = ()


class _Step:
    """The changes of one event: drafts of groups, and what is known of connections."""

    def __init__(self, state: SacState, now_ms: int) -> None:
        self.state = state
        self.now_ms = now_ms
        self.drafts: dict[SacGroupKey, GroupDraft] = {}
        self.index: dict[sac.ConnectionId, Iterable[SacGroupKey]] = {}
        """The new index entries of connections, where the event sets them."""
        self.rebuilt = False
        """True if the event makes the index of all connections agree with the groups."""
        self.first: list[sac.SacEffect] = []
        """Effects to be placed before those of the groups."""
        self.records: list[SacRecord] = []

    def draft(self, key: SacGroupKey) -> GroupDraft | None:
        """Return the group as changed by this step so far; None without a group."""
        draft = self.drafts.get(key)
        if draft is None:
            value = self.state.groups.get(key)
            if value is None:
                return None
            draft = self.drafts[key] = GroupDraft(key, value, self.now_ms)
        return draft

    def open(self, key: SacGroupKey, partition_index: int) -> GroupDraft:
        """Return the group; create it if it is missing."""
        draft = self.draft(key)
        if draft is None:
            draft = self.drafts[key] = GroupDraft(key, SacGroupValue(partition_index, ()), self.now_ms)
        return draft

    def has_members(self, connection: sac.ConnectionId, key: SacGroupKey) -> bool:
        """Return true if a connection has members in a group, as changed by this step so far."""
        draft = self.drafts.get(key)
        if draft is None:
            return self.state.has_members(connection, key)
        return bool(draft.places_of(connection))

    def outcome(self, reply: sac.SacReply | None) -> SacOutcome:
        """Return the outcome of the step."""
        records = self.records
        records += [SacRecord(key, each.value()) for key, each in self.drafts.items() if each.changed]
        if self.rebuilt:
            records += [SacRecord(SacConnectionKey(connection), None) for connection in self.state.strays]
        else:
            for connection, groups in self.index.items():
                self._record_index(connection, sorted(groups))
        effects = self.first
        for draft in self.drafts.values():
            effects += draft.effects
        return SacOutcome(tuple(records), reply, tuple(effects))

    def _record_index(self, connection: sac.ConnectionId, groups: list[SacGroupKey]) -> None:
        """Write a connection's record: it has one only if its groups are not those that it has members in."""
        known = dict.fromkeys((*self.state.groups_of(connection), *self.drafts))
        members = sorted(key for key in known if self.has_members(connection, key))
        stray = self.state.strays.get(connection)
        if groups == members:
            if stray is not None:
                self.records.append(SacRecord(SacConnectionKey(connection), None))
        elif stray is None or list(stray) != groups:
            value = SacConnectionValue(tuple(groups))
            self.records.append(SacRecord(SacConnectionKey(connection), value))


class SacCoordinator:
    """All groups of single active consumers whose records are in one journal."""

    __slots__ = ("_due", "_handlers", "state")

    def __init__(self) -> None:
        self.state = SacState()
        """The state, for listings and judges."""
        self._due: sac.ConnectionId | None = None
        self._handlers: Mapping[type, Callable[[Any, _Step], sac.SacReply | None]] = {
            sac.RegisterConsumer: _register,
            sac.UnregisterConsumer: _unregister,
            sac.ActivateConsumer: _activate,
            sac.ConnectionReconnected: _reconnected,
            sac.PurgeNodes: _purge,
            sac.UpdateConfiguration: _configure,
            sac.EvaluateGroup: _evaluate,
            sac.ConnectionDown: _down,
            sac.NodeUp: _node_up,
            sac.DisconnectedTimeout: _timeout,
            sac.LeaderChanged: _leader_changed,
            sac.Tick: _tick,
            DeadlineReached: self._deadline_reached,
        }

    def handle(self, event: SacInput, now_ms: int) -> SacOutcome:
        """Return the outcome of an event. An unknown command or event gets UNKNOWN_COMMAND."""
        handler = self._handlers.get(type(event))
        if handler is None:
            return SacOutcome(reply=sac.SacReply(error=sac.SacError.UNKNOWN_COMMAND))
        step = _Step(self.state, now_ms)
        return step.outcome(handler(event, step))

    def apply(self, record: SacRecord) -> None:
        """Make a record true."""
        self.state.apply(record)

    def replay(self, records: Iterable[SacRecord], now_ms: int) -> None:
        """Load a journal: apply its records, then start all timers with the rest of their time.

        Hand in `LeaderChanged` next, so that connections are watched again.
        """
        for record in records:
            self.state.apply(record)
        self.state.restart_timers(now_ms)

    def next_deadline(self) -> int | None:
        """Return the time at which to hand in `DeadlineReached`, in ms; None if nothing is timed."""
        return self.state.timers.next_deadline()

    def apply_batch(self, records: tuple[SacRecord, ...]) -> None:
        """Make the records of one outcome true."""
        for record in records:
            self.state.apply(record)

    def not_written(self, event: SacInput, outcome: SacOutcome, code: ErrorCode, now_ms: int) -> SacOutcome:
        """Return the outcome in place of one that could not be written: nothing happened."""
        if isinstance(event, DeadlineReached) and self._due is not None:
            self.state.timers.set(self._due, now_ms + _RETRY_MS)
        command = isinstance(event, sac.SacCommand)
        return SacOutcome(reply=sac.SacReply(error=sac.SacError.COORDINATOR_UNAVAILABLE) if command else None)

    def hard_state(self) -> dict[str, Any]:
        """Return all state from records, to compare with another coordinator's."""
        return self.state.hard_state()

    def _deadline_reached(self, _: DeadlineReached, step: _Step) -> None:
        """Run the most overdue timer."""
        self._due = self.state.timers.pop_due(step.now_ms)
        if self._due is not None:
            _timeout(sac.DisconnectedTimeout(self._due), step)


# -- commands ---------------------------------------------------------------------------------------------


def _key(
    command: sac.RegisterConsumer | sac.UnregisterConsumer | sac.ActivateConsumer | sac.EvaluateGroup,
) -> SacGroupKey:
    return SacGroupKey(command.vhost, command.stream, command.consumer_name)


def _register(command: sac.RegisterConsumer, step: _Step) -> sac.SacReply:
    """Register a consumer. Its connection is watched even if the group has another partition index."""
    key, connection = _key(command), command.connection
    step.first += [sac.MonitorConnection(connection), sac.MonitorNode(sac.node_of(connection))]
    present = step.state.members_of(connection, key)
    group = step.open(key, command.partition_index)
    if group.partition_index == command.partition_index:
        reply = sac.SacReply(is_active=group.register(command, present))
        agrees = connection not in step.state.strays
    else:
        reply = sac.SacReply(error=sac.SacError.PARTITION_INDEX_CONFLICT)
        agrees = False
    if not agrees:
        step.index[connection] = {*step.state.indexed(connection), key}
    return reply


def _unregister(command: sac.UnregisterConsumer, step: _Step) -> sac.SacReply:
    """Remove a consumer; the reply is ok even if there was no such consumer."""
    key, connection = _key(command), command.connection
    group = step.draft(key)
    if group is not None:
        group.unregister(connection, command.subscription_id)
    left = not step.has_members(connection, key)
    if connection in step.state.strays:
        groups = set(step.state.indexed(connection))
        if left:
            groups.discard(key)
        step.index[connection] = groups
        is_over = not groups
    else:  # its index is the groups that it has members in, and stays so
        is_over = left and step.state.is_only_in(connection, key)
    if step.state.is_indexed(connection) and is_over:
        step.first.append(sac.DemonitorConnection(connection))
    return OK


def _activate(command: sac.ActivateConsumer, step: _Step) -> sac.SacReply:
    group = step.draft(_key(command))
    if group is None:
        return sac.SacReply(error=sac.SacError.NOT_FOUND)
    group.activate()
    return OK


def _reconnected(command: sac.ConnectionReconnected, step: _Step) -> sac.SacReply:
    connection = command.connection
    step.first += [sac.MonitorConnection(connection), sac.MonitorNode(sac.node_of(connection))]
    step.rebuilt = True
    for group in _groups(step, step.state.groups_of(connection)):
        group.reconnect(connection)
    return OK


def _purge(command: sac.PurgeNodes, step: _Step) -> sac.SacReply:
    """Connection after connection: an early one may promote a consumer that a later one takes away."""
    step.rebuilt = True
    for node in command.nodes:
        for connection in step.state.connections_on(node):
            for group in _groups(step, step.state.groups_of(connection)):
                group.end_connection(connection)
    return OK


def _configure(command: sac.UpdateConfiguration, step: _Step) -> sac.SacReply:
    step.records.append(SacRecord(SacConfigurationKey(), SacConfigurationValue(dict(command.conf))))
    return OK


def _evaluate(command: sac.EvaluateGroup, step: _Step) -> sac.SacReply:
    step.rebuilt = True
    group = step.draft(_key(command))
    if group is None:
        return sac.SacReply(error=sac.SacError.NOT_FOUND)
    group.evaluate(frozenset(command.dead))
    return OK


# -- events -----------------------------------------------------------------------------------------------


def _groups(step: _Step, keys: Iterable[SacGroupKey]) -> list[GroupDraft]:
    drafts = (step.draft(key) for key in keys)
    return [draft for draft in drafts if draft is not None]


def _down(event: sac.ConnectionDown, step: _Step) -> sac.SacReply:
    """Acted upon once: a connection whose node was lost is indexed again when the node is back."""
    connection = event.connection
    lost = event.reason == sac.DownReason.NOCONNECTION
    if lost:
        step.first.append(sac.MonitorNode(sac.node_of(connection)))
    if not step.state.is_indexed(connection):
        return OK
    if lost:
        step.first.append(sac.StartTimer(connection, step.state.disconnected_timeout_ms))
    if lost or connection in step.state.strays:
        step.index[connection] = ()
    for group in _groups(step, step.state.indexed(connection)):
        if lost:
            group.lose_connection(connection)
        else:
            group.end_connection(connection)
    return OK


def _node_up(event: sac.NodeUp, step: _Step) -> sac.SacReply:
    for connection in step.state.connections_on(event.node):
        step.first += [sac.CheckConnection(connection), sac.MonitorConnection(connection)]
        if connection in step.state.strays:
            step.index[connection] = step.state.groups_of(connection)
    return OK


def _timeout(event: sac.DisconnectedTimeout, step: _Step) -> sac.SacReply:
    for group in _groups(step, step.state.groups_of(event.connection)):
        group.forget(event.connection)
    return OK


def _leader_changed(_: sac.LeaderChanged, step: _Step) -> None:
    """Watching and timing is soft: set all of it up again."""
    state = step.state
    step.first += [sac.MonitorConnection(connection) for connection in state.index()]
    step.first += [sac.MonitorNode(node) for node in state.nodes]
    for connection in state.away:
        deadline_ms = state.timers.deadline_of(connection)
        if deadline_ms is not None:
            step.first.append(sac.StartTimer(connection, max(0, deadline_ms - step.now_ms)))


def _tick(event: sac.Tick, step: _Step) -> None:
    """Purge nodes with members that are not in the cluster."""
    stale = tuple(node for node in step.state.nodes if node not in event.nodes)
    if stale and event.nodes:
        _purge(sac.PurgeNodes(stale), step)
    if step.state.conf.get(sac.DISCONNECTED_TIMEOUT) != event.disconnected_timeout_ms:
        _configure(sac.UpdateConfiguration({sac.DISCONNECTED_TIMEOUT: event.disconnected_timeout_ms}), step)
