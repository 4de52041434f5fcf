"""Checks that types cannot express: values that contradict each other, or the run's length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, Final, TypeAlias

import msgspec

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.protocol.errors import FencepostError, ProtocolError
from fencepost.coordinator.protocol.regular_expressions import compiled
from fencepost.coordinator.protocol.topics import is_valid_name
from fencepost.simulation.scenarios import scenario as s
from fencepost.simulation.scenarios.kinds import AnyScenario
from fencepost.simulation.scenarios.positions import Path
from fencepost.simulation.scenarios.sac import NodeCrash, NodeLeave, NodeSplit, SacScenario
from fencepost.simulation.scenarios.streams import (
    OtherApplication,
    ScenarioStreamsGroup,
    StreamsScenario,
    ThreadException,
)
from fencepost.simulation.scenarios.timing import faults_end_us
from fencepost.simulation.scenarios.values import Moment

Mistake: TypeAlias = tuple[Path, str]

_MOST_MEMBERS = 100_000


MAX_LISTED: Final = 10_000
"""Maximum number of steps, of faults, of topics and of streams of a scenario."""


def first_mistake(scenario: AnyScenario) -> Mistake | None:
    """Return the first mistake: its place, and what was expected there. None if there is no mistake."""
    for mistake in _counts(scenario):
        return mistake
    for checks in _CHECKS[scenario.protocol]:
        for mistake in checks(scenario):
            return mistake
    return None


def _counts(scenario: AnyScenario) -> Iterator[Mistake]:
    for name in ("topics", "streams", "steps", "faults"):
        if (number := len(getattr(scenario, name, ()))) > MAX_LISTED:
            yield (name,), f"expected at most {MAX_LISTED:,}, got {number:,}"


def _unused(scenario: SacScenario | StreamsScenario) -> Iterator[Mistake]:
    """Yield keys that only other kinds of scenarios use."""
    tables: dict[Path, s._Table] = {("cluster",): scenario.cluster}
    tables |= {("steps", index): step for index, step in enumerate(scenario.steps)}
    tables |= {("faults", index): fault for index, fault in enumerate(scenario.faults)}
    for path, table in tables.items():
        for field in msgspec.structs.fields(table):
            if field.name in table.unused and getattr(table, field.name) != field.default:
                yield (*path, field.encode_name), f'has no effect where protocol is "{scenario.protocol}"'


def _lengths(scenario: AnyScenario) -> Iterator[Mistake]:
    for path in scenario.positive:
        duration = attrgetter(".".join(path))(scenario)
        if duration.ms < 1:
            yield path, f"expected at least 1ms, got {duration}"


def _streams(scenario: SacScenario) -> Iterator[Mistake]:
    names: set[str] = set()
    partitions: set[str] = set()
    for index, stream in enumerate(scenario.streams):
        path: Path = ("streams", index, "name")
        if stream.name in names:
            yield path, f"expected names that differ, {stream.name!r} is there twice"
        for partition in stream.partition_names:
            if partition in partitions:
                yield path, f"expected partitions whose names differ, {partition!r} is there twice"
        names.add(stream.name)
        partitions.update(stream.partition_names)


def _nodes(scenario: SacScenario) -> Iterator[Mistake]:
    """Yield faults that need more nodes than the cluster has."""
    nodes = scenario.cluster.nodes
    for index, fault in enumerate(scenario.faults):
        if isinstance(fault, NodeCrash | NodeLeave | NodeSplit) and nodes < fault.least_nodes:
            least = fault.least_nodes
            yield (
                ("faults", index, "kind"),
                f"has no effect with fewer than {least} nodes, cluster.nodes is {nodes}",
            )


def _topics(scenario: s.Scenario | StreamsScenario) -> Iterator[Mistake]:
    named: list[tuple[Path, str]] = [
        (("topics", index, "name"), topic.name) for index, topic in enumerate(scenario.topics)
    ]
    if scenario.global_topic is not None:
        named.append((("global_topic", "name"), scenario.global_topic.name))
    names: dict[str, str] = {}
    for path, name in named:
        if names.get(_unified(name)) == name:
            yield path, f"expected names that differ, {name!r} is there twice"
        if wrong := topic_name_mistake(name, names):
            yield path, wrong
        names[_unified(name)] = name


def _unified(name: str) -> str:
    """Return the name as Kafka compares it: names of metrics have '_' for '.'."""
    return name.replace(".", "_")


def topic_name_mistake(name: str, others: Mapping[str, str]) -> str | None:
    """Say why Kafka refuses to create a topic of that name next to the others, by their unified names."""
    if not is_valid_name(name):
        return f"expected letters, digits, '.', '_' and '-', and neither '.' nor '..', got {name!r}"
    other = others.get(_unified(name), name)
    if other != name:
        return f"expected a name that differs from {other!r} in more than '.' for '_', got {name!r}"
    return None


def _group(scenario: s.Scenario) -> Iterator[Mistake]:
    group = scenario.group
    if group.pattern is not None and (wrong := pattern_mistake(group.pattern)):
        yield ("group", "pattern"), wrong
    if group.topics is not None and not group.topics and group.pattern is None:
        yield ("group", "topics"), "expected at least one topic, or a pattern"
    yield from _unknown_topics(scenario, ("group", "topics"), group.topics or ())


def _unknown_topics(scenario: AnyScenario, path: Path, topics: Iterable[str]) -> Iterator[Mistake]:
    """Yield topics that never exist. Kafka lets members subscribe to future topics, but such a name is a
    slip."""
    known = scenario.named_topics
    for index, name in enumerate(topics):
        if name not in known:
            yield (
                (*path, index),
                f"expected a topic of the file, or that a step creates ({', '.join(known)}), got {name!r}",
            )


def pattern_mistake(pattern: str) -> str | None:
    """Say why no member can subscribe to the pattern."""
    try:
        compiled(pattern)
    except ProtocolError as error:
        return f"expected a regular expression in RE2's syntax: {error.message}"
    return None


def _properties(scenario: s.Scenario | StreamsScenario) -> Iterator[Mistake]:
    try:
        GroupCoordinatorConfig.from_properties(scenario.config)
    except FencepostError as error:
        named = [key for key in scenario.config if key in str(error)]
        yield ("config", *named[:1]), str(error).removeprefix(f"{''.join(named[:1])}: ")


def _config(scenario: s.Scenario) -> Iterator[Mistake]:
    mistakes = list(_properties(scenario))
    if mistakes:
        yield from mistakes
        return
    config = GroupCoordinatorConfig.from_properties(scenario.config)
    yield from _classic(scenario.group, config)
    assignor = scenario.group.assignor
    if assignor is not None and assignor not in config.group_consumer_assignors:
        allowed = ", ".join(config.group_consumer_assignors)
        yield ("group", "assignor"), f"expected one of {allowed}, got {assignor!r}"


def _streams_group(scenario: StreamsScenario) -> Iterator[Mistake]:
    if scenario.group.protocol == "classic":
        yield from _classic(scenario.group, GroupCoordinatorConfig.from_properties(scenario.config))


def _threads(scenario: StreamsScenario) -> Iterator[Mistake]:
    """Yield exceptions that no thread can raise."""
    for index, fault in enumerate(scenario.faults):
        if isinstance(fault, ThreadException) and fault.where == "global" and scenario.global_topic is None:
            yield ("faults", index, "where"), "has no effect without a global_topic: there is no such thread"


def _others(scenario: StreamsScenario) -> Iterator[Mistake]:
    """Yield other applications that cannot run here."""
    for index, fault in enumerate(scenario.faults):
        if isinstance(fault, OtherApplication) and scenario.lacks_for_others:
            yield ("faults", index, "kind"), scenario.lacks_for_others


def _classic(
    group: s.ScenarioGroup | ScenarioStreamsGroup, config: GroupCoordinatorConfig
) -> Iterator[Mistake]:
    """Yield timeouts of classic members that the coordinator or the client refuses."""
    low, high = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
    if not low <= group.session_timeout.ms <= high:
        yield (
            ("group", "session_timeout"),
            f"expected what group.min.session.timeout.ms and group.max.session.timeout.ms allow, {low} ms to"
            f" {high} ms, got {group.session_timeout}",
        )
    if group.heartbeat_interval.ms >= group.session_timeout.ms:
        yield (
            ("group", "heartbeat_interval"),
            f"expected less than group.session_timeout, which is {group.session_timeout}, got"
            f" {group.heartbeat_interval}",
        )


def _steps(scenario: AnyScenario) -> Iterator[Mistake]:
    for index, step in enumerate(scenario.steps):
        yield from _inside(scenario, ("steps", index, "at"), step.at)
        if isinstance(step, s.RollingRestart | s.Scale | s.ChangeSubscription | s.Operations):
            end = step.at.within(scenario.duration.us) + step.over.within(scenario.duration.us)
            if end > scenario.duration.us:
                yield ("steps", index, "over"), f"the step ends after the run's {scenario.duration}"
        yield from _overlap(scenario, index)
        if isinstance(step, s.Scale) and (step.members is None) == (step.factor is None):
            yield ("steps", index), "expected one of members and factor"
        if isinstance(step, s.Scale) and step.factor is not None:
            most = _MOST_MEMBERS / scenario.group.members
            if step.factor > most:
                yield (
                    ("steps", index, "factor"),
                    f"expected at most {most:g}, which makes {_MOST_MEMBERS:,} members of the"
                    f" {scenario.group.members:,} at the start, got {step.factor:g}",
                )
        if isinstance(step, s.ChangeSubscription):
            if not step.topics and step.pattern is None:
                yield ("steps", index), "expected topics or a pattern"
            if step.pattern is not None and (wrong := pattern_mistake(step.pattern)):
                yield ("steps", index, "pattern"), wrong
            yield from _unknown_topics(scenario, ("steps", index, "topics"), step.topics)
        if isinstance(step, s.Operate):
            yield from _unknown_topics(scenario, ("steps", index, "topics"), step.topics)
        if isinstance(step, s.Scale) and step.members == 0 and scenario.protocol == "sac":
            yield ("steps", index, "members"), "expected at least 1, got 0"


def _overlap(scenario: AnyScenario, index: int) -> Iterator[Mistake]:
    """Yield an overlap that has no effect, or steps that do not know which members have replaced others."""
    restart = scenario.steps[index]
    if not isinstance(restart, s.RollingRestart) or restart.overlap is None:
        return
    if not isinstance(scenario, s.Scenario):
        yield ("steps", index, "overlap"), "has an effect only in scenarios of consumers"
    of_members = (s.RollingRestart, s.Scale, s.ChangeSubscription)
    if any(isinstance(step, of_members) for place, step in enumerate(scenario.steps) if place != index):
        yield (
            ("steps", index, "overlap"),
            "expected no other step of members beside a restart with an overlap",
        )


def _strategies(scenario: s.Scenario) -> Iterator[Mistake]:
    """Yield assignors that no member can offer together, or that belong to another protocol."""
    for index, step in enumerate(scenario.steps):
        names = step.partition_assignment_strategy if isinstance(step, s.RollingRestart) else ()
        path = ("steps", index, "partition_assignment_strategy")
        if names and "classic" not in scenario.protocols:
            yield path, "has no effect: it is for members of the classic protocol"
        if len({name == "cooperative-sticky" for name in names}) > 1 or len({*names}) < len(names):
            yield path, f"expected different assignors, all eager or all cooperative, got {', '.join(names)}"


def _transactions(scenario: s.Scenario) -> Iterator[Mistake]:
    """Yield settings and faults of transactions in a scenario without any, and a timeout that no broker
    allows."""
    if scenario.application.commit == "transaction":
        most = GroupCoordinatorConfig.from_properties(scenario.config).transaction_max_timeout_ms
        if scenario.transactions.timeout.ms > most:
            yield (
                ("transactions", "timeout"),
                f"expected at most transaction.max.timeout.ms, {most} ms, got"
                f" {scenario.transactions.timeout}",
            )
        return
    why = 'has no effect: application.commit is not "transaction"'
    for field in msgspec.structs.fields(s.ScenarioTransactions):
        if getattr(scenario.transactions, field.name) != field.default:
            yield ("transactions", field.name), why
    for index, fault in enumerate(scenario.faults):
        if isinstance(fault, s.ProducerTakeover):
            yield ("faults", index, "kind"), why


def _topic_steps(scenario: s.Scenario) -> Iterator[Mistake]:
    """Walk through the steps in time: each must be able to create, grow or delete its topic at that time."""
    counts = {topic.name: topic.partitions for topic in scenario.topics}
    names = {_unified(name): name for name in counts}
    ordered = sorted(enumerate(scenario.steps), key=lambda item: item[1].at.within(scenario.duration.us))
    for index, step in ordered:
        if isinstance(step, s.CreateTopic):
            if step.name in counts:
                yield ("steps", index, "name"), f"expected a new name, {step.name!r} exists by then"
            if wrong := topic_name_mistake(step.name, names):
                yield ("steps", index, "name"), wrong
            counts[step.name] = step.partitions
            names[_unified(step.name)] = step.name
        elif isinstance(step, s.GrowTopic | s.DeleteTopic):
            if step.name not in counts:
                known = ", ".join(counts)
                yield (
                    ("steps", index, "name"),
                    f"expected a topic that exists by then ({known}), got {step.name!r}",
                )
            elif isinstance(step, s.DeleteTopic):
                del counts[step.name]
                names.pop(_unified(step.name), None)
            elif step.partitions <= counts[step.name]:
                yield (
                    ("steps", index, "partitions"),
                    f"expected more than the {counts[step.name]} that {step.name!r} has by then,"
                    f" got {step.partitions}",
                )
            else:
                counts[step.name] = step.partitions


def _faults(scenario: AnyScenario) -> Iterator[Mistake]:
    length = scenario.duration.us
    for index, fault in enumerate(scenario.faults):
        path: Path = ("faults", index)
        if (fault.at is None) == (fault.every is None):
            yield path, "expected one of at (once) and every (again and again)"
        if fault.every is not None and fault.every.ms < 1:
            yield (*path, "every"), f"expected at least 1ms, got {fault.every}"
        if fault.at is not None:
            yield from _inside(scenario, (*path, "at"), fault.at)
            for field in msgspec.structs.fields(fault):
                if field.name in ("start", "until") and getattr(fault, field.name) != field.default:
                    yield (*path, field.encode_name), "has no effect: it is for faults with every"
        yield from _inside(scenario, (*path, "from"), fault.start)
        yield from _inside(scenario, (*path, "until"), fault.until)
        if fault.start.within(length) >= fault.until.within(length):
            yield (*path, "until"), "the window ends before it begins"
        start, end = fault.start.within(length), faults_end_us(scenario, scenario.quiet_us)
        if fault.every is not None and start >= end:
            yield (
                (*path, "from"),
                f"expected a time before {end / 1_000_000:g} s, when the run's quiet phase begins, got"
                f" {start / 1_000_000:g} s",
            )


def _inside(scenario: AnyScenario, path: Path, moment: Moment) -> Iterator[Mistake]:
    if moment.within(scenario.duration.us) > scenario.duration.us:
        yield path, f"expected a time within the run's {scenario.duration}"


_CHECKS: Final[Mapping[str, tuple[Callable[[Any], Iterator[Mistake]], ...]]] = {
    "consumer": (
        _lengths,
        _topics,
        _group,
        _config,
        _transactions,
        _steps,
        _strategies,
        _topic_steps,
        _faults,
    ),
    "sac": (_unused, _lengths, _streams, _nodes, _steps, _faults),
    "streams": (_unused, _lengths, _topics, _properties, _streams_group, _threads, _others, _faults),
}
"""Checks of each kind of scenario, in this order."""
