"""Single active consumers: what must follow from each event of their coordinator, clause by clause.

This is a second, plain account of RabbitMQ's stream coordinator in its machine version 7, written from its
source: names in parentheses are functions and commands of `rabbit_stream_sac_coordinator`. It shares no code
with the coordinator that it judges. `expect` is pure: from the state before, the event, what the coordinator
was free to choose, and the time, it returns the one right state, reply and effects.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from fencepost.coordinator.protocol import sac
from fencepost.coordinator.protocol.outcome import DeadlineReached
from fencepost.coordinator.protocol.sac_records import SacConsumer, SacGroupKey, SacGroupValue

# Names of their own: in Python 3.11 an attribute of an enum class costs as much as a call.
ABSENT, WAITS, ACTIVE, STEPS, LOST_WAITS, LOST_ACTIVE, FORGOTTEN_WAITS, FORGOTTEN_ACTIVE = sac.ConsumerStatus
CONNECTED: Final = frozenset({WAITS, ACTIVE, STEPS})
"""Consumers that may be chosen (`eligible`)."""
LOST: Final = frozenset({LOST_WAITS, LOST_ACTIVE})
HOLDS: Final = frozenset({ACTIVE, STEPS, LOST_ACTIVE})
"""A consumer with one of these keeps the others from being active (`is_active`)."""

Moves: TypeAlias = Mapping[sac.ConsumerStatus, sac.ConsumerStatus]
_WAIT: Final[Moves] = dict.fromkeys(CONNECTED, WAITS)
_LOSE: Final[Moves] = {
    **dict.fromkeys((WAITS, STEPS, LOST_WAITS, FORGOTTEN_WAITS), LOST_WAITS),
    **dict.fromkeys((ACTIVE, LOST_ACTIVE, FORGOTTEN_ACTIVE), LOST_ACTIVE),
}
_FORGET: Final[Moves] = {LOST_ACTIVE: FORGOTTEN_ACTIVE, LOST_WAITS: FORGOTTEN_WAITS}
_RETURN: Final[Moves] = {LOST_ACTIVE: ACTIVE, LOST_WAITS: WAITS, FORGOTTEN_WAITS: WAITS}
LEADER_WAITS_MS: Final = 10_000
"""Minimum time that a new leader waits for a connection that is lost, in ms (`state_enter`)."""

Change: TypeAlias = tuple[SacGroupValue, Collection[tuple[SacConsumer, bool]]]
"""A group after a change, and the consumers that get a message: true to be active, false to step down."""


class SacModel(NamedTuple):
    """All that the coordinator keeps."""

    groups: Mapping[SacGroupKey, SacGroupValue]
    """Groups with at least one consumer. Their order is that of registration."""
    connections: Mapping[sac.ConnectionId, frozenset[SacGroupKey]]
    """By connection, the groups to act on when it ends (`pids_groups`)."""
    conf: Mapping[str, int]
    deadlines: Mapping[sac.ConnectionId, int]
    """The times at which lost connections are forgotten, in ms."""


NOTHING: Final = SacModel({}, {}, {sac.DISCONNECTED_TIMEOUT: sac.DEFAULT_DISCONNECTED_TIMEOUT_MS}, {})
"""A new coordinator (`init_state`)."""


class SacExpectation(NamedTuple):
    """All that must follow from one event. The order of effects is free, except of messages to one group."""

    after: SacModel
    reply: sac.SacReply | None
    effects: tuple[sac.SacEffect, ...]


# -- a group chooses ----------------------------------------------------------------------------------------


def holder(consumers: Iterable[SacConsumer]) -> SacConsumer | None:
    """Return the active consumer, as far as the group knows (`lookup_active_consumer`)."""
    return next((one for one in consumers if one.status in HOLDS), None)


def right_one(group: SacGroupValue) -> SacConsumer | None:
    """Return the consumer that should be active (`evaluate_active_consumer`).

    A lost active one stays it: it may be consuming, and cannot be asked to stop.
    """
    if lost := [one for one in group.consumers if one.status is LOST_ACTIVE]:
        return lost[0]
    eligible = [one for one in group.consumers if one.status in CONNECTED]
    if not eligible or group.partition_index < sac.SIMPLE:
        return None
    return eligible[0 if group.partition_index == sac.SIMPLE else group.partition_index % len(eligible)]


def rebalanced(group: SacGroupValue) -> Change:
    """Let the right consumer become active (`maybe_rebalance_group`)."""
    if group.partition_index != sac.SIMPLE:
        return _handed_over(group) if group.partition_index > sac.SIMPLE else (group, ())
    first = holder(group.consumers)
    if first is None:
        return _promoted(group)
    return _with(group, [first, *(one for one in group.consumers if one is not first)]), ()


def without(group: SacGroupValue, gone: Collection[SacConsumer]) -> Change:
    """Remove consumers, and choose again (`handle_consumer_removal`)."""
    kept = _with(group, [one for one in group.consumers if one not in gone])
    if group.partition_index == sac.SIMPLE:
        return _promoted(kept) if holder(gone) else (kept, ())
    return _handed_over(kept) if gone and (holder(gone) or holder(kept.consumers)) else (kept, ())


def _promoted(group: SacGroupValue) -> Change:
    """In a plain stream the first connected consumer becomes active at once (`compute_active_consumer`)."""
    right = right_one(group)
    if right is not None and right.status in CONNECTED:
        group = _put(_moved(group, _WAIT), right, ACTIVE)
    active = holder(group.consumers)
    return group, [(active, True)] if active else ()


def _handed_over(group: SacGroupValue) -> Change:
    """In a super stream the wrong one has to step down first: the next choice follows its response."""
    active, right = holder(group.consumers), right_one(group)
    if right is None or right is active:
        return group, ()
    if active is None:
        return _put(group, right, ACTIVE), [(right, True)]
    return _put(group, active, STEPS), [(active, False)]


# -- what happens to its consumers --------------------------------------------------------------------------


def registered(group: SacGroupValue, new: SacConsumer) -> Change:
    """Add a consumer at the end, unless it is there already (`do_register_consumer`)."""
    is_simple = group.partition_index == sac.SIMPLE
    is_first = not (holder(group.consumers) if is_simple else group.consumers)
    if not any(place(one) == place(new) for one in group.consumers):
        group = _put(_with(group, [*group.consumers, new]), new, ACTIVE if is_first else WAITS)
    if is_first:
        return group, [(new, True)]
    return (group, ()) if is_simple else rebalanced(group)


def activated(group: SacGroupValue) -> Change:
    """Choose again: a consumer has stepped down, or an operator asks (`command_activate_consumer`).

    The active consumer gets no message if it stays. One that has to wait from now on gets none either.
    """
    waiting, active = _moved(group, _WAIT), holder(group.consumers)
    right = right_one(waiting)
    if right is None or right.status not in CONNECTED:
        return waiting, ()
    stays = active is not None and active.status is ACTIVE and place(active) == place(right)
    return _put(waiting, right, ACTIVE), () if stays else [(right, True)]


def evaluated(group: SacGroupValue, dead: Collection[sac.ConnectionId]) -> Change:
    """Keep consumers that are connected and not dead, and choose again (`command_evaluate_group`)."""
    kept = [one for one in group.consumers if one.status in CONNECTED and one.connection not in dead]
    return rebalanced(_with(group, kept))


def ended(group: SacGroupValue, connection: sac.ConnectionId) -> Change:
    """Remove a connection's consumers (`handle_group_after_connection_down`)."""
    return without(group, _of(group, connection))


def lost(group: SacGroupValue, connection: sac.ConnectionId, now_ms: int) -> Change:
    """The node of a connection is lost (`handle_group_after_connection_node_disconnected`).

    A consumer that was to step down will not respond: it waits, and the group does not.
    """
    mine = _of(group, connection)
    after = _moved(group, _LOSE, connection, now_ms)
    return rebalanced(after) if any(one.status is STEPS for one in mine) else (after, ())


def forgotten(group: SacGroupValue, connection: sac.ConnectionId) -> Change:
    """The time of a lost connection is over (`handle_group_connection_presumed_down`)."""
    after = _moved(group, _FORGET, connection)
    return rebalanced(after) if after != group else (after, ())


def returned(group: SacGroupValue, connection: sac.ConnectionId) -> Change:
    """A connection is back, as active as it was (`do_handle_group_connection_reconnected`).

    If it was forgotten while active, there may be two active consumers. Both have to step down, and the first
    response lets the group choose (`handle_pdown_active_reconnected`).
    """
    stop = [one for one in _of(group, connection) if one.status is FORGOTTEN_ACTIVE]
    if not stop:
        after = _moved(group, _RETURN, connection)
        return rebalanced(after) if _of(group, connection) else (after, ())
    after = _moved(group, {FORGOTTEN_ACTIVE: WAITS}, connection)
    if not any(one.status is LOST_ACTIVE for one in group.consumers):
        stop = [one for one in group.consumers if one in stop or one.status is ACTIVE]
        after = _moved(_moved(after, {FORGOTTEN_WAITS: WAITS}, connection), {ACTIVE: WAITS})
    return after, [(one, False) for one in stop]


def place(one: SacConsumer) -> tuple[sac.ConnectionId, int]:
    """Return what tells a consumer from the others of its group."""
    return one.connection, one.subscription_id


def _of(group: SacGroupValue, connection: sac.ConnectionId) -> list[SacConsumer]:
    return [one for one in group.consumers if one.connection == connection]


def _with(group: SacGroupValue, consumers: Iterable[SacConsumer]) -> SacGroupValue:
    return SacGroupValue(group.partition_index, tuple(consumers))


def _moved(
    group: SacGroupValue, moves: Moves, connection: sac.ConnectionId | None = None, since_ms: int = 0
) -> SacGroupValue:
    """Move consumers, of one connection or of all."""

    def after(one: SacConsumer) -> SacConsumer:
        is_meant = one.status in moves and connection in (None, one.connection)
        return _at(one, moves[one.status], since_ms) if is_meant else one

    return _with(group, map(after, group.consumers))


def _put(group: SacGroupValue, which: SacConsumer, status: sac.ConsumerStatus) -> SacGroupValue:
    put = _at(which, status)
    return _with(group, [put if place(one) == place(which) else one for one in group.consumers])


def _at(one: SacConsumer, status: sac.ConsumerStatus, since_ms: int = 0) -> SacConsumer:
    """Set a status (`csr_status`). Its time is read only of lost consumers."""
    return SacConsumer(one.connection, one.subscription_id, one.owner, status, since_ms)


# -- an event -----------------------------------------------------------------------------------------------


def expect(
    before: SacModel, event: sac.SacCommand | sac.SacEvent | DeadlineReached, choice: str | None, now_ms: int
) -> SacExpectation:
    """Return what must follow from an event.

    `choice` is the connection that `DeadlineReached` is about: several may be due. None for no connection.
    """
    step = _Step(before, choice, now_ms)
    clause = _CLAUSES.get(type(event))
    reply = sac.SacReply(error=sac.SacError.UNKNOWN_COMMAND) if clause is None else clause(step, event)
    away = {one.connection for group in step.groups.values() for one in group.consumers if one.status in LOST}
    deadlines = {each: deadline_ms for each, deadline_ms in step.deadlines.items() if each in away}
    return SacExpectation(SacModel(step.groups, step.index, step.conf, deadlines), reply, tuple(step.effects))


def members_of(groups: Mapping[SacGroupKey, SacGroupValue]) -> dict[sac.ConnectionId, frozenset[SacGroupKey]]:
    """Return the groups that each connection has consumers in (`compute_pid_group_dependencies`)."""
    found: dict[sac.ConnectionId, set[SacGroupKey]] = {}
    for key, group in groups.items():
        for one in group.consumers:
            found.setdefault(one.connection, set()).add(key)
    return {connection: frozenset(keys) for connection, keys in found.items()}


_OK: Final = sac.SacReply()


class _Step:
    """The state while one event changes it: a method for each event, which returns the reply (`apply`)."""

    def __init__(self, before: SacModel, choice: sac.ConnectionId | None, now_ms: int) -> None:
        self.choice, self.now_ms = choice, now_ms
        self.groups, self.index = dict(before.groups), dict(before.connections)
        self.conf, self.deadlines = before.conf, dict(before.deadlines)
        self.timeout_ms = before.conf.get(sac.DISCONNECTED_TIMEOUT, sac.DEFAULT_DISCONNECTED_TIMEOUT_MS)
        self.effects: list[sac.SacEffect] = []

    def change(self, key: SacGroupKey, rule: Callable[..., Change], *arguments: object) -> None:
        """Change a group; without consumers it ends (`update_groups`)."""
        self.groups[key], told = rule(self.groups[key], *arguments)
        if not self.groups[key].consumers:
            del self.groups[key]
        for one, active in told:
            message = sac.NotifyConsumer(
                connection=one.connection,
                subscription_id=one.subscription_id,
                stream=key.stream,
                consumer_name=key.consumer_name,
                active=active,
                stepping_down=not active,
            )
            self.effects.append(message)

    def change_all(
        self, keys: Iterable[SacGroupKey], rule: Callable[..., Change], *arguments: object
    ) -> None:
        """Change those groups that exist."""
        for key in sorted(keys):
            if key in self.groups:
                self.change(key, rule, *arguments)

    def register(self, command: sac.RegisterConsumer) -> sac.SacReply:
        """A group has one partition index. A connection is watched even if it names another one."""
        key, connection, index = _key_of(command), command.connection, command.partition_index
        self.effects += [sac.MonitorConnection(connection), sac.MonitorNode(sac.node_of(connection))]
        self.index[connection] = self.index.get(connection, frozenset()) | {key}
        group = self.groups.setdefault(key, SacGroupValue(index, ()))
        if group.partition_index != index:
            return sac.SacReply(error=sac.SacError.PARTITION_INDEX_CONFLICT)
        new = SacConsumer(connection, command.subscription_id, command.owner, ABSENT, self.now_ms)
        self.change(key, registered, new)
        if index == sac.SIMPLE:  # the reply is that to a new consumer, even if it is there already
            return sac.SacReply(is_active=not holder(group.consumers))
        mine = [one for one in self.groups[key].consumers if place(one) == place(new)]
        return sac.SacReply(is_active=bool(holder(mine)))

    def unregister(self, command: sac.UnregisterConsumer) -> sac.SacReply:
        """Remove a consumer; a connection without any is watched no more."""
        key, connection = _key_of(command), command.connection
        if group := self.groups.get(key):
            gone = connection, command.subscription_id
            self.change(key, without, [one for one in group.consumers if place(one) == gone])
        if connection in self.index and key not in members_of(self.groups).get(connection, ()):
            self.index[connection] -= {key}
            if not self.index[connection]:
                del self.index[connection]
                self.effects.append(sac.DemonitorConnection(connection))
        return _OK

    def activate(self, command: sac.ActivateConsumer) -> sac.SacReply:
        """Let a group choose."""
        return self.named(command, activated)

    def evaluate(self, command: sac.EvaluateGroup) -> sac.SacReply:
        """Repair a group."""
        reply = self.named(command, evaluated, command.dead)
        self.index = members_of(self.groups)
        return reply

    def named(self, command: Any, rule: Callable[..., Change], *arguments: object) -> sac.SacReply:
        """Change the group that a command names, if there is one."""
        if (key := _key_of(command)) not in self.groups:
            return sac.SacReply(error=sac.SacError.NOT_FOUND)
        self.change(key, rule, *arguments)
        return _OK

    def reconnected(self, command: sac.ConnectionReconnected) -> sac.SacReply:
        """A connection responds to a question: it is there."""
        connection = command.connection
        self.effects += [sac.MonitorConnection(connection), sac.MonitorNode(sac.node_of(connection))]
        self.change_all(self.groups, returned, connection)
        self.index = members_of(self.groups)
        return _OK

    def purge(self, command: sac.PurgeNodes) -> sac.SacReply:
        """The connections of these nodes have ended (`purge_node`).

        RabbitMQ takes those of a node in any order; here it is sorted. An early one may promote a consumer
        that a later one removes.
        """
        for node in command.nodes:
            for connection, keys in sorted(members_of(self.groups).items()):
                if sac.node_of(connection) == node:
                    self.change_all(keys, ended, connection)
        self.index = members_of(self.groups)
        return _OK

    def configure(self, command: sac.UpdateConfiguration) -> sac.SacReply:
        """Take up a configuration as a whole."""
        self.conf = command.conf
        return _OK

    def down(self, event: sac.ConnectionDown) -> sac.SacReply:
        """A connection ended, or its node was lost (`handle_connection_down`).

        It leaves the index: another one changes nothing until it is back.
        """
        connection, is_lost = event.connection, event.reason == sac.DownReason.NOCONNECTION
        if is_lost:
            self.effects.append(sac.MonitorNode(sac.node_of(connection)))
        if (keys := self.index.pop(connection, None)) is None:
            return _OK
        if is_lost:
            self.time(connection, self.timeout_ms)
            self.change_all(keys, lost, connection, self.now_ms)
        else:
            self.change_all(keys, ended, connection)
        return _OK

    def time(self, connection: sac.ConnectionId, delay_ms: int) -> None:
        """Start or restart the timer of a connection."""
        self.deadlines[connection] = self.now_ms + delay_ms
        self.effects.append(sac.StartTimer(connection, delay_ms))

    def node_up(self, event: sac.NodeUp) -> sac.SacReply:
        """Ask each connection of a node whether it is there (`handle_node_reconnected`)."""
        for connection, keys in sorted(members_of(self.groups).items()):
            if sac.node_of(connection) == event.node:
                self.index[connection] = keys
                self.effects += [sac.CheckConnection(connection), sac.MonitorConnection(connection)]
        return _OK

    def timeout(self, event: sac.DisconnectedTimeout) -> sac.SacReply:
        """A connection is presumed down (`presume_connection_down`)."""
        self.change_all(self.groups, forgotten, event.connection)
        return _OK

    def deadline_reached(self, _: DeadlineReached) -> None:
        """End the chosen connection's timer, if it is due."""
        if self.choice is not None and self.deadlines.get(self.choice, self.now_ms) <= self.now_ms:
            self.change_all(self.groups, forgotten, self.choice)

    def lead(self, _: sac.LeaderChanged) -> None:
        """Watch and time everything again (`state_enter`).

        RabbitMQ has no branch for a connection that was lost between 10 s and the timeout ago. Here the rest
        of the timeout remains.
        """
        members = [one for group in self.groups.values() for one in group.consumers]
        self.effects += [sac.MonitorConnection(connection) for connection in self.index]
        self.effects += [sac.MonitorNode(node) for node in {sac.node_of(one.connection) for one in members}]
        lost_ms = dict(sorted((one.connection, one.since_ms) for one in members if one.status in LOST))
        for connection, since_ms in lost_ms.items():
            rest_ms = max(since_ms + self.timeout_ms - self.now_ms, LEADER_WAITS_MS)
            self.time(connection, min(rest_ms, self.timeout_ms))

    def tick(self, event: sac.Tick) -> None:
        """Remove nodes that left the cluster, and take up a new timeout (`check_conf_change`)."""
        stale = {sac.node_of(each) for each in members_of(self.groups)}.difference(event.nodes)
        if stale and event.nodes:
            self.purge(sac.PurgeNodes(tuple(sorted(stale))))
        if self.conf.get(sac.DISCONNECTED_TIMEOUT) != event.disconnected_timeout_ms:
            self.conf = {sac.DISCONNECTED_TIMEOUT: event.disconnected_timeout_ms}


_CLAUSES: Final[Mapping[type, Callable[[_Step, Any], sac.SacReply | None]]] = {
    sac.RegisterConsumer: _Step.register,
    sac.UnregisterConsumer: _Step.unregister,
    sac.ActivateConsumer: _Step.activate,
    sac.EvaluateGroup: _Step.evaluate,
    sac.ConnectionReconnected: _Step.reconnected,
    sac.PurgeNodes: _Step.purge,
    sac.UpdateConfiguration: _Step.configure,
    sac.ConnectionDown: _Step.down,
    sac.NodeUp: _Step.node_up,
    sac.DisconnectedTimeout: _Step.timeout,
    DeadlineReached: _Step.deadline_reached,
    sac.LeaderChanged: _Step.lead,
    sac.Tick: _Step.tick,
}


def _key_of(command: Any) -> SacGroupKey:
    return SacGroupKey(command.vhost, command.stream, command.consumer_name)
