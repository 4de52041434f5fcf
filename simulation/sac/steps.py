"""Checks what one step of the coordinator may change, must change and must send, by the rules of the
protocol.

The rules are stated from outside: which event can lead a consumer from one status to another, which consumer
is the right one to be active, and what connections receive. How the coordinator gets there is its own matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from fencepost.coordinator.protocol.outcome import DeadlineReached
from fencepost.coordinator.protocol.sac import (
    SIMPLE,
    ActivateConsumer,
    CheckConnection,
    ConnectionDown,
    ConnectionId,
    ConnectionReconnected,
    ConsumerStatus,
    DemonitorConnection,
    DisconnectedTimeout,
    DownReason,
    EvaluateGroup,
    LeaderChanged,
    MonitorConnection,
    MonitorNode,
    NodeUp,
    NotifyConsumer,
    PurgeNodes,
    RegisterConsumer,
    SacCommand,
    SacError,
    StartTimer,
    Tick,
    UnregisterConsumer,
    node_of,
)
from fencepost.coordinator.protocol.sac_records import SacConsumer, SacGroupKey, SacGroupValue
from fencepost.coordinator.sac.coordinator import SacInput, SacOutcome
from fencepost.simulation.checkers.base import Finding
from fencepost.simulation.sac.observers import SacChecker, SacStep

_S = ConsumerStatus
_ABSENT = _S.UNREGISTERED
_WAITS, _ACTIVE, _STEPS = _S.CONNECTED_WAITING, _S.CONNECTED_ACTIVE, _S.CONNECTED_DEACTIVATING
_D_WAITS, _D_ACTIVE = _S.DISCONNECTED_WAITING, _S.DISCONNECTED_ACTIVE
_F_WAITS, _F_ACTIVE = _S.FORGOTTEN_WAITING, _S.FORGOTTEN_ACTIVE
CONNECTED: Final = frozenset({_WAITS, _ACTIVE, _STEPS})
DISCONNECTED: Final = frozenset({_D_WAITS, _D_ACTIVE})
FORGOTTEN: Final = frozenset({_F_WAITS, _F_ACTIVE})
HOLDS_OFF: Final = frozenset({_ACTIVE, _STEPS, _D_ACTIVE})
"""A consumer with one of these keeps the others from being active."""

_Pairs = frozenset[tuple[ConsumerStatus, ConsumerStatus]]
_CHOSEN: Final[_Pairs] = frozenset({(_WAITS, _ACTIVE), (_ACTIVE, _STEPS)})
"""Changes that a choice makes to consumers that the event does not name."""
_ACTIVATED: Final[_Pairs] = frozenset(
    {(_WAITS, _ACTIVE), (_STEPS, _ACTIVE), (_ACTIVE, _WAITS), (_STEPS, _WAITS)}
)
_LOST: Final[_Pairs] = frozenset(
    {
        (_WAITS, _D_WAITS),
        (_STEPS, _D_WAITS),
        (_F_WAITS, _D_WAITS),
        (_ACTIVE, _D_ACTIVE),
        (_F_ACTIVE, _D_ACTIVE),
    }
)
_RETURNED: Final[_Pairs] = frozenset(
    {
        *((waiting, now) for waiting in (_D_WAITS, _F_WAITS) for now in (_WAITS, _ACTIVE)),
        *((_D_ACTIVE, now) for now in (_ACTIVE, _STEPS)),
        (_F_ACTIVE, _WAITS),
    }
)
_RECONCILED: Final[_Pairs] = frozenset({(_ACTIVE, _WAITS)})
_FORGOTTEN: Final[_Pairs] = frozenset({(_D_WAITS, _F_WAITS), (_D_ACTIVE, _F_ACTIVE)})


class GroupSeen(NamedTuple):
    """One group that an event concerns, before and after it."""

    key: SacGroupKey
    partition_index: int
    before: Mapping[tuple[ConnectionId, int], SacConsumer]
    after: Mapping[tuple[ConnectionId, int], SacConsumer]

    def was(self, one: SacConsumer) -> ConsumerStatus:
        """Return a consumer's status before."""
        earlier = self.before.get((one.connection, one.subscription_id))
        return _ABSENT if earlier is None else earlier.status

    def now(self, one: SacConsumer) -> ConsumerStatus:
        """Return a consumer's status after."""
        later = self.after.get((one.connection, one.subscription_id))
        return _ABSENT if later is None else later.status

    @property
    def consumers(self) -> list[SacConsumer]:
        """Return the consumers of before and after; one that stays is given as it is now."""
        gone = [one for each, one in self.before.items() if each not in self.after]
        return [*self.after.values(), *gone]


def group_seen(key: SacGroupKey, before: SacGroupValue | None, after: SacGroupValue | None) -> GroupSeen:
    """Return a group before and after an event; `None` if it does not exist."""
    group = after or before
    return GroupSeen(
        key,
        SIMPLE if group is None else group.partition_index,
        _by_place(before),
        _by_place(after),
    )


def _by_place(group: SacGroupValue | None) -> dict[tuple[ConnectionId, int], SacConsumer]:
    return {} if group is None else {(one.connection, one.subscription_id): one for one in group.consumers}


def _ended(event: SacInput) -> bool:
    return isinstance(event, ConnectionDown) and event.reason != DownReason.NOCONNECTION


def _lost(event: SacInput) -> bool:
    return isinstance(event, ConnectionDown) and event.reason == DownReason.NOCONNECTION


def _key_of(event: SacInput) -> SacGroupKey | None:
    if isinstance(event, RegisterConsumer | UnregisterConsumer | ActivateConsumer | EvaluateGroup):
        return SacGroupKey(event.vhost, event.stream, event.consumer_name)
    return None


def _names(event: SacInput, one: SacConsumer) -> bool:
    """Return whether an event is about this consumer, or about its connection or node."""
    match event:
        case RegisterConsumer() | UnregisterConsumer():
            return (event.connection, event.subscription_id) == (one.connection, one.subscription_id)
        case ConnectionDown() | ConnectionReconnected() | DisconnectedTimeout():
            return event.connection == one.connection
        case Tick():
            return bool(event.nodes) and node_of(one.connection) not in event.nodes
        case PurgeNodes():
            return node_of(one.connection) in event.nodes
        case EvaluateGroup():
            return one.connection in event.dead
        case DeadlineReached():
            return one.status not in CONNECTED
    return False


def _returns_forgotten(event: SacInput, seen: GroupSeen) -> bool:
    """Return whether a consumer has returned that was forgotten while it was active: then all have to step
    down."""
    return isinstance(event, ConnectionReconnected) and any(
        one.status is _F_ACTIVE and _names(event, one) for one in seen.before.values()
    )


# -- causes -----------------------------------------------------------------------------------------------


def causes(event: SacInput, seen: GroupSeen) -> Iterator[str]:
    """Yield changes that the event can't cause, and changes that it must cause and that are missing."""
    foreign = (key := _key_of(event)) is not None and key != seen.key
    for one in seen.consumers:
        old, new = seen.was(one), seen.now(one)
        if old is not new and (foreign or not _may_lead(event, seen, one, old, new)):
            yield f"{one.connection} goes from {old} to {new}"
        elif not foreign and _names(event, one) and not _is_done(event, seen, old, new):
            yield f"{one.connection} is {new}"
    if _returns_forgotten(event, seen) and any(one.status is _ACTIVE for one in seen.after.values()):
        yield "a forgotten active consumer is back, and another consumer continues"
    if isinstance(event, RegisterConsumer) and not foreign:
        mine = seen.after.get((event.connection, event.subscription_id))
        if mine is None or mine.owner != event.owner:
            yield f"{event.connection} registers, and is no member as {event.owner}"


def _may_lead(
    event: SacInput, seen: GroupSeen, one: SacConsumer, old: ConsumerStatus, new: ConsumerStatus
) -> bool:
    step = old, new
    named = _names(event, one)
    if isinstance(event, ActivateConsumer):
        return step in _ACTIVATED
    if isinstance(event, NodeUp | LeaderChanged) or not isinstance(
        event,
        RegisterConsumer
        | UnregisterConsumer
        | EvaluateGroup
        | ConnectionDown
        | ConnectionReconnected
        | DisconnectedTimeout
        | DeadlineReached
        | PurgeNodes
        | Tick,
    ):
        return False
    if _returns_forgotten(event, seen):
        if _is_blocked(seen.after.values()):
            return named and old is _F_ACTIVE and new is _WAITS
        return step in _RECONCILED or (named and step in _RETURNED)
    if _lost(event):
        waited_for = any(one.status is _STEPS and _names(event, one) for one in seen.before.values())
        return step in _LOST if named else waited_for and step in _CHOSEN
    if step in _CHOSEN or (step == (_WAITS, _STEPS) and isinstance(event, PurgeNodes | Tick)):
        return True
    if isinstance(event, EvaluateGroup) and new is _ABSENT:
        return named or old not in CONNECTED
    if not named:
        return False
    if isinstance(event, RegisterConsumer):
        return old is _ABSENT and new in (_WAITS, _ACTIVE)
    if isinstance(event, ConnectionReconnected):
        return step in _RETURNED
    if isinstance(event, DeadlineReached | DisconnectedTimeout):
        return step in _FORGOTTEN
    return new is _ABSENT


def _is_done(event: SacInput, seen: GroupSeen, old: ConsumerStatus, new: ConsumerStatus) -> bool:
    """Return whether what the event says of a consumer is so."""
    if _ended(event):
        return new is _ABSENT or old not in CONNECTED  # its node was lost before: judged when it returns
    match event:
        case UnregisterConsumer() | PurgeNodes() | Tick() | EvaluateGroup():
            return new is _ABSENT
        case ConnectionDown():
            return new not in CONNECTED
        case DisconnectedTimeout():
            return new not in DISCONNECTED
        case ConnectionReconnected():
            blocked = _returns_forgotten(event, seen) and _is_blocked(seen.after.values())
            return new in CONNECTED or (blocked and old is not _F_ACTIVE)
    return True


# -- the choice -------------------------------------------------------------------------------------------


def _is_blocked(consumers: Iterable[SacConsumer]) -> bool:
    return any(one.status is _D_ACTIVE for one in consumers)


def right_one(index: int, consumers: Iterable[SacConsumer]) -> SacConsumer | None:
    """Return the consumer that should be active, of those that are connected."""
    connected = [one for one in consumers if one.status in CONNECTED]
    if not connected or index < SIMPLE:
        return None
    return connected[0 if index == SIMPLE else index % len(connected)]


def choices(event: SacInput, seen: GroupSeen) -> Iterator[str]:
    """Yield wrong choices, and the lack of one."""
    if _has_two_active(seen):
        return
    after = list(seen.after.values())
    right = right_one(seen.partition_index, after)
    blocked = _is_blocked(after)
    for one in after:
        old = seen.was(one)
        if one.status is _ACTIVE and old not in (_ACTIVE, _D_ACTIVE):
            first = isinstance(event, RegisterConsumer) and old is _ABSENT and seen.partition_index == SIMPLE
            if blocked:
                yield f"{one.connection} becomes active while a lost consumer may be"
            elif one is not right and not first:
                yield f"{one.connection} becomes active in place of {_name(right)}"
        elif (
            one.status is _STEPS
            and old is not _STEPS
            and (seen.partition_index == SIMPLE or one is right)
            and not isinstance(event, PurgeNodes | Tick)  # several may leave, each followed by a choice
        ):
            yield f"{one.connection} is to step down, and no consumer is to replace it"
    yield from _order(event, seen)
    if right is not None and not blocked and _has_to_choose(event, seen):
        active = next((one for one in after if one.status in HOLDS_OFF), None)
        if active is None:
            yield f"no consumer is active, and {right.connection} could be"
        elif seen.partition_index != SIMPLE and active.status is _ACTIVE and active is not right:
            yield f"{active.connection} continues in place of {right.connection}"
        elif isinstance(event, ActivateConsumer) and active is not right:
            yield f"{active.connection} is chosen in place of {right.connection}"


def _has_two_active(seen: GroupSeen) -> bool:
    """Return whether a consumer was lost twice before it had reported, and another one is active."""
    return sum(one.status in HOLDS_OFF for one in seen.before.values()) > 1


def _name(one: SacConsumer | None) -> str:
    return "no consumer" if one is None else one.connection


def _has_to_choose(event: SacInput, seen: GroupSeen) -> bool:
    named = [one for one in seen.before.values() if _names(event, one)]
    match event:
        case RegisterConsumer():  # a second registration of a simple group's consumer changes nothing
            return seen.partition_index != SIMPLE or not named
        case ActivateConsumer() | EvaluateGroup():
            return True
        case ConnectionReconnected():
            return bool(named) and not _returns_forgotten(event, seen)
        case UnregisterConsumer() | PurgeNodes() | Tick():
            return any(one.status in HOLDS_OFF for one in named) or _goes_on(seen, named)
        case ConnectionDown() if _ended(event):
            gone = [one for one in named if seen.now(one) is _ABSENT]
            return any(one.status in HOLDS_OFF for one in gone) or _goes_on(seen, gone)
        case ConnectionDown():
            return any(one.status is _STEPS for one in named)
        case DeadlineReached() | DisconnectedTimeout():
            return any(one.status in DISCONNECTED and seen.now(one) is not one.status for one in named)
    return False


def _goes_on(seen: GroupSeen, gone: list[SacConsumer]) -> bool:
    """Return whether waiting consumers left a group that has an active one."""
    return bool(gone) and any(one.status in HOLDS_OFF for one in seen.after.values())


_MOVES_TO_FRONT: Final = (ConnectionReconnected, DeadlineReached, DisconnectedTimeout, EvaluateGroup)
"""Events that put the active consumer of a plain stream first in line."""


def _order(event: SacInput, seen: GroupSeen) -> Iterator[str]:
    """Yield a change of the order of registration."""
    kept = [place for place in seen.before if place in seen.after]
    expected = [*kept, *(place for place in seen.after if place not in seen.before)]
    found = list(seen.after)
    if seen.partition_index == SIMPLE and _has_to_choose(event, seen) and isinstance(event, _MOVES_TO_FRONT):
        for place in kept:
            if seen.before[place].status in HOLDS_OFF and seen.after[place].status in HOLDS_OFF:
                expected = [place, *(other for other in expected if other != place)]
    if found != expected:
        yield "the order of registration is lost"


# -- messages to connections ------------------------------------------------------------------------------


def tellings(event: SacInput, outcome: SacOutcome, seen: GroupSeen) -> Iterator[str]:
    """Yield messages that consumers of the group should not get, and messages that they should get and do
    not."""
    told: dict[tuple[ConnectionId, int], list[bool]] = {}
    for effect in outcome.effects:
        if isinstance(effect, NotifyConsumer) and _is_of(effect, seen.key):
            if effect.active == effect.stepping_down:
                yield f"{effect.connection} gets messages to be active and to step down"
            told.setdefault((effect.connection, effect.subscription_id), []).append(effect.active)
    if _has_two_active(seen):
        return
    several = isinstance(event, PurgeNodes | Tick)
    for place, one in seen.after.items():
        heard = told.pop(place, [])
        due = _due(event, seen, one)
        if due is None:
            again = one.status is _STEPS and heard == [False]
            if heard and not again and not (isinstance(event, RegisterConsumer) and _names(event, one)):
                yield f"{one.connection} stays {one.status}, and its messages are: {_words(heard)}"
        elif heard != [due] and not (several and heard and heard[-1] is due):
            yield f"{one.connection} becomes {one.status}, and its messages are: {_words(heard)}"
    if told and not several:
        yield f"{', '.join(connection for connection, _ in told)} gets a message, and is no member"


def _is_of(effect: NotifyConsumer, key: SacGroupKey) -> bool:
    return effect.stream == key.stream and effect.consumer_name == key.consumer_name


def _words(heard: list[bool]) -> str:
    return " and ".join("to be active" if active else "to step down" for active in heard) or "nothing"


def _due(event: SacInput, seen: GroupSeen, one: SacConsumer) -> bool | None:
    """Return the message that a consumer must get: true to be active, false to step down, None for no
    message."""
    old = seen.was(one)
    if one.status is _ACTIVE:
        return None if old in (_ACTIVE, _D_ACTIVE) else True
    if one.status is _STEPS:
        return None if old is _STEPS else False
    if isinstance(event, ConnectionReconnected) and one.status is _WAITS and old in (_F_ACTIVE, _ACTIVE):
        return False
    return None


# -- watched connections and nodes ------------------------------------------------------------------------


class Watching(NamedTuple):
    """Connections and nodes that the effects of one step ask to watch."""

    connections: frozenset[ConnectionId]
    nodes: frozenset[str]
    asked: frozenset[ConnectionId]
    timed: frozenset[ConnectionId]
    dropped: frozenset[ConnectionId]


def watching(outcome: SacOutcome) -> Watching:
    """Return what the effects ask to watch."""
    effects = outcome.effects
    return Watching(
        frozenset(each.connection for each in effects if isinstance(each, MonitorConnection)),
        frozenset(each.node for each in effects if isinstance(each, MonitorNode)),
        frozenset(each.connection for each in effects if isinstance(each, CheckConnection)),
        frozenset(each.connection for each in effects if isinstance(each, StartTimer)),
        frozenset(each.connection for each in effects if isinstance(each, DemonitorConnection)),
    )


def unwatched(
    event: SacInput,
    outcome: SacOutcome,
    before: Mapping[SacGroupKey, SacGroupValue],
    after: Mapping[SacGroupKey, SacGroupValue],
) -> Iterator[str]:
    """Yield connections and nodes that have to be watched, asked or timed from this step on, and are not."""
    found = watching(outcome)
    consumers = [one for group in after.values() for one in group.consumers]
    connected_before = {
        one.connection for group in before.values() for one in group.consumers if one.status in CONNECTED
    }
    members = {one.connection for one in consumers}
    match event:
        case RegisterConsumer() | ConnectionReconnected():
            if event.connection not in found.connections or node_of(event.connection) not in found.nodes:
                yield f"{event.connection} and its node are not watched"
        case NodeUp():
            for connection in sorted(each for each in members if node_of(each) == event.node):
                if connection not in found.asked or connection not in found.connections:
                    yield f"{event.node} is back, and {connection} is not asked and watched"
        case LeaderChanged():
            connected = {one.connection for one in consumers if one.status in CONNECTED}
            away = {one.connection for one in consumers if one.status in DISCONNECTED}
            nodes = {node_of(each) for each in members}
            for what in sorted(
                (connected - found.connections) | (away - found.timed) | (nodes - found.nodes)
            ):
                yield f"a new leader does not watch {what}"
        case ConnectionDown() if _lost(event):
            if node_of(event.connection) not in found.nodes:
                yield f"{node_of(event.connection)} is lost, and its return is not watched for"
            # The second loss before a return is no news: its timer runs on.
            if event.connection in connected_before and event.connection not in found.timed:
                yield f"{event.connection} is lost, and its timer does not start"
    for connection in sorted(found.dropped & members):
        yield f"{connection} is not watched any more, and has consumers"


# -- replies ----------------------------------------------------------------------------------------------


def wrong_reply(event: SacInput, outcome: SacOutcome, seen: GroupSeen | None) -> str | None:
    """Return what is wrong with the reply to a command; None if nothing is. `seen` is the group it names."""
    if not isinstance(event, SacCommand):
        return None
    reply = outcome.reply
    if reply is None:
        return "there is no reply"
    expected: SacError | None = None
    if seen is not None and isinstance(event, ActivateConsumer | EvaluateGroup) and not seen.before:
        expected = SacError.NOT_FOUND
    if seen is not None and seen.before and isinstance(event, RegisterConsumer):
        conflicts = seen.partition_index != event.partition_index
        expected = SacError.PARTITION_INDEX_CONFLICT if conflicts else None
    if reply.error is not expected:
        return f"it is {reply.error or 'ok'} in place of {expected or 'ok'}"
    if expected is None and seen is not None and isinstance(event, RegisterConsumer):
        return _wrong_activity(event, reply.is_active, seen)
    return None


def _wrong_activity(event: RegisterConsumer, is_active: bool | None, seen: GroupSeen) -> str | None:
    place = event.connection, event.subscription_id
    mine = seen.after.get(place)
    active = mine is not None and mine.status in HOLDS_OFF
    again = place in seen.before and seen.partition_index == SIMPLE
    return None if again or is_active is active else f"it says {is_active}, and the consumer is {active}"


# -- all of it --------------------------------------------------------------------------------------------


class SacSteps(SacChecker):
    """Judges each step of the coordinator by what it changes, replies and asks for."""

    def on_step(self, step: SacStep, now_us: int) -> None:
        """Judge the groups that the step changed, and the one that the command names."""
        self.report_all(findings(step.event, step.outcome, step.before, step.after))


def findings(
    event: SacInput,
    outcome: SacOutcome,
    before: Mapping[SacGroupKey, SacGroupValue],
    after: Mapping[SacGroupKey, SacGroupValue],
) -> Iterator[Finding]:
    """Yield what is wrong with one step."""
    what = type(event).__name__
    named = _key_of(event)
    own = None if named is None else group_seen(named, before.get(named), after.get(named))
    if wrong := wrong_reply(event, outcome, own):
        yield "sac-replies", f"{what}: {wrong}"
    refused = outcome.reply is not None and outcome.reply.error is not None
    for key in dict.fromkeys((*before, *after)):
        changed = before.get(key) is not after.get(key)
        if changed and refused:
            yield "sac-replies", f"{what} is refused, and changes {key.stream}"
        if refused or not (changed or key == named or _concerns(event, before.get(key))):
            continue
        seen = group_seen(key, before.get(key), after.get(key))
        for invariant, judged in (
            ("sac-cause", causes(event, seen)),
            ("sac-choice", choices(event, seen)),
            ("sac-told", tellings(event, outcome, seen)),
        ):
            for message in judged:
                yield invariant, f"{key.stream}, at {what}: {message}"
    for message in unwatched(event, outcome, before, after):
        yield "sac-watched", message


def _concerns(event: SacInput, group: SacGroupValue | None) -> bool:
    if group is None or isinstance(event, NodeUp | LeaderChanged | DeadlineReached):
        return False
    return any(_names(event, one) for one in group.consumers)
