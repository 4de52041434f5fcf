"""Checks that a scenario can be played with a plan. Drawn plans always fit; people edit the files
of others."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, get_args

import msgspec

from fencepost.simulation.faults.plan import FaultKind, FaultPlan, PlannedEvent
from fencepost.simulation.scenarios.check import pattern_mistake, topic_name_mistake
from fencepost.simulation.scenarios.kinds import AnyScenario
from fencepost.simulation.scenarios.sac import (
    NodeCrash,
    NodeLeave,
    NodeSplit,
    SacFault,
    SacOperation,
    SacScenario,
)
from fencepost.simulation.scenarios.scenario import Fault, Operation, Scenario
from fencepost.simulation.scenarios.streams import Place, Response, StreamsFault, StreamsScenario

_NUMBERED: Final = frozenset((FaultKind.RESTART, FaultKind.START, FaultKind.STOP, FaultKind.SUBSCRIBE))
"""Kinds that happen to the member with that number."""
_TO_TOPICS: Final = frozenset((FaultKind.CREATE_TOPIC, FaultKind.GROW_TOPIC, FaultKind.DELETE_TOPIC))
_TO_NODES: Final = {
    FaultKind(str(fault.__struct_config__.tag)): fault.least_nodes
    for fault in (NodeCrash, NodeLeave, NodeSplit)
}
"""Minimum number of nodes for each kind of disturbance."""


def _tags(faults: Iterable[type[msgspec.Struct]]) -> frozenset[FaultKind]:
    return frozenset(FaultKind(str(fault.__struct_config__.tag)) for fault in faults)


KINDS: Final[dict[type[AnyScenario], frozenset[FaultKind]]] = {
    Scenario: _tags(get_args(Fault)) | _NUMBERED | _TO_TOPICS | {FaultKind.OPERATE},
    SacScenario: _tags(get_args(SacFault)) | _NUMBERED - {FaultKind.SUBSCRIBE} | {FaultKind.OPERATE},
    StreamsScenario: _tags(get_args(StreamsFault)),
}
"""The kinds of disturbances that can happen in the world of a scenario."""


def misfit(plan: FaultPlan, scenario: AnyScenario) -> str | None:
    """Return the first entry that can't be done, and what was expected; None if all entries can be done."""
    kinds = KINDS[type(scenario)]
    if plan.members < scenario.group.members:
        return f"plan.members: expected at least the scenario's {scenario.group.members}, got {plan.members}"
    if plan.end_us < plan.faults_end_us:
        return f"plan.end_us: expected at least faults_end_us, {plan.faults_end_us}, got {plan.end_us}"
    topics = _topics(plan, scenario)
    for index, entry in enumerate(plan.entries):
        where = f"plan.entries[{index}]"
        if entry.kind not in kinds:
            known = ", ".join(sorted(kinds))
            return f"{where}.kind: {entry.kind} can't happen in this world, expected one of {known}"
        if entry.kind in _NUMBERED and entry.member >= plan.members:
            return (
                f"{where}.member: there is no member {entry.member}, they are numbered from 0 to"
                f" {plan.members - 1}"
            )
        if entry.at_us > plan.faults_end_us:
            return (
                f"{where}.at_us: expected at most faults_end_us, {plan.faults_end_us}, when the quiet phase"
                f" begins, got {entry.at_us}"
            )
        if entry.kind in (FaultKind.SUBSCRIBE, FaultKind.OPERATE) and (
            wrong := _no_subscription(entry, topics, scenario)
        ):
            return f"{where}{wrong}"
        if entry.kind in _TO_TOPICS and (wrong := _no_change(entry, topics)):
            return f"{where}.{wrong}"
        if scenario.cluster_size < _TO_NODES.get(entry.kind, 0):
            return (
                f"{where}.kind: {entry.kind} has no effect with fewer than {_TO_NODES[entry.kind]} nodes,"
                f" the scenario's cluster.nodes is {scenario.cluster_size}"
            )
        if isinstance(scenario, StreamsScenario) and (wrong := _not_of_an_application(entry, scenario)):
            return f"{where}.{wrong}"
        if entry.kind is FaultKind.SLOW_LINK and entry.added[0] == "lognormal" and entry.added[1] < 1:
            return f"{where}.added: expected a median above zero, got {entry.added[1]}"
    return None


def _topics(plan: FaultPlan, scenario: AnyScenario) -> tuple[str, ...]:
    """Return all topics that may exist at some time; it does not matter whether an entry comes in time for
    one.

    In a shrunk plan, the entry that created or deleted a topic may be missing.
    """
    created = (entry.name for entry in plan.entries if entry.kind is FaultKind.CREATE_TOPIC)
    return tuple(dict.fromkeys([*scenario.named_topics, *created]))


def _no_subscription(entry: PlannedEvent, topics: Collection[str], scenario: AnyScenario) -> str | None:
    """Return why a member can't subscribe to that, or why an operation can't request it; None if it can."""
    operations = get_args(SacOperation if isinstance(scenario, SacScenario) else Operation)
    if entry.kind is FaultKind.OPERATE and entry.name not in operations:
        return f".name: expected one of {', '.join(operations)}, got {entry.name!r}"
    if entry.kind is FaultKind.SUBSCRIBE and not entry.topics and entry.pattern is None:
        return f": expected topics or a pattern to {entry.kind} to"
    for index, name in enumerate(entry.topics):
        if name not in topics:
            return f".topics[{index}]: {_no_topic(name, topics)}"
    wrong = None if entry.pattern is None else pattern_mistake(entry.pattern)
    return wrong and f".pattern: {wrong}"


def _no_change(entry: PlannedEvent, topics: Collection[str]) -> str | None:
    """Return why that can't be done to a topic; None if it can."""
    if entry.kind is FaultKind.CREATE_TOPIC and (wrong := topic_name_mistake(entry.name, {})):
        return f"name: {wrong}"
    if entry.name not in topics:
        return f"name: {_no_topic(entry.name, topics)}"
    if entry.kind is not FaultKind.DELETE_TOPIC and entry.partitions < 1:
        return f"partitions: expected at least 1 to {entry.kind}, got {entry.partitions}"
    return None


def _no_topic(name: str, topics: Iterable[str]) -> str:
    known = ", ".join(topics)
    return f"expected a topic of the scenario, or that an entry creates ({known}), got {name!r}"


def _not_of_an_application(entry: PlannedEvent, scenario: StreamsScenario) -> str | None:
    """Return why that can't happen to this Streams application; None if it can."""
    if entry.kind is FaultKind.OTHER_APPLICATION:
        return f"kind: {wrong}" if (wrong := scenario.lacks_for_others) else None
    return _no_exception(entry, scenario) if entry.kind is FaultKind.THREAD_EXCEPTION else None


def _no_exception(entry: PlannedEvent, scenario: StreamsScenario) -> str | None:
    """Return why no thread can raise this exception; None if one can."""
    response, _, place = entry.name.partition(" ")
    if response not in get_args(Response) or place not in get_args(Place):
        responses, places = ", ".join(get_args(Response)), ", ".join(get_args(Place))
        return f"name: expected a response ({responses}) and a place ({places}), got {entry.name!r}"
    if place == "global" and scenario.global_topic is None:
        return "name: without a global_topic there is no global thread to raise it"
    if entry.partitions < 1:
        return f"partitions: expected at least 1, the number of threads that raise it, got {entry.partitions}"
    return None
