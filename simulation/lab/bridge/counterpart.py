"""Runs a scenario of single active consumers, and the consumer group (KIP-848) that is nearest to it.

The counterpart has the same clients, links, callbacks and partitions: a stream is a topic of one partition, a
super stream is one topic with as many partitions as it has. Both get the same disturbances at the same
moments: the plan of the first is translated entry by entry. A node is a broker. A node that leaves stays
down; a node that is split off is frozen for that time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from fencepost.simulation.analyses.comparison import nearest_rank
from fencepost.simulation.faults.draw import Draw, DrawnEvent, FaultKind
from fencepost.simulation.lab.bridge.shifts import ConsumerShifts, MemberShifts
from fencepost.simulation.run import plan_of, run
from fencepost.simulation.scenarios import scenario as s
from fencepost.simulation.scenarios.sac import OperateGroups, SacScenario

_SAME: Final[Mapping[FaultKind, FaultKind]] = {
    FaultKind.NODE_CRASH: FaultKind.BROKER_CRASH,
    FaultKind.NODE_LEAVE: FaultKind.BROKER_CRASH,
    FaultKind.NODE_SPLIT: FaultKind.BROKER_PAUSE,
}


class Protocol(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one protocol over all runs. Times are in seconds; None if there is no value."""

    name: str
    gaps: int
    """Number of times that a partition had no consumer, after it had had one."""
    without_consumer_s: float
    share_without_consumer: float
    """Share of the time of all partitions."""
    median_s: float | None
    p99_s: float | None
    longest_s: float | None
    overlaps: int
    """Number of times that two consumers considered themselves the consumer of a partition."""
    two_consumers_s: float
    violations: int


class Bridge(msgspec.Struct, frozen=True, kw_only=True):
    """Both protocols, side by side."""

    scenario: str
    seeds: int
    members: int
    partitions: int
    virtual_seconds: float
    """Virtual seconds of one run."""
    protocols: tuple[Protocol, Protocol]


def counterpart(scenario: SacScenario) -> s.Scenario:
    """Return the consumer group with the same clients, on as many brokers as there are nodes."""
    cluster, application, network = scenario.cluster, scenario.application, scenario.network
    return s.Scenario(
        name=f"{scenario.name}-kip-848",
        duration=scenario.duration,
        quiet=scenario.quiet,
        group=s.ScenarioGroup(
            id=scenario.group.id, members=scenario.group.members, start=scenario.group.start
        ),
        topics=tuple(
            s.ScenarioTopic(
                name=stream.name,
                partitions=max(1, stream.partitions),
                records_per_second=stream.records_per_second * max(1, stream.partitions),
            )
            for stream in scenario.streams
        ),
        cluster=s.ScenarioCluster(
            brokers=cluster.nodes,
            replication=cluster.replication,
            failover=cluster.failover,
            load=cluster.load,
        ),
        network=s.ScenarioNetwork(latency=network.latency, detection=network.detection),
        application=s.ScenarioApplication(
            processing=application.processing, callback=application.callback, restart=application.restart
        ),
        steps=tuple(step for step in scenario.steps if not isinstance(step, OperateGroups)),
    )


def translated(plan: Draw) -> Draw:
    """Return the same disturbances, at the same moments, for a consumer group.

    What operators request is left out: the other kind of group has no such request.
    """
    entries = (_entry(each, plan) for each in plan.entries if each.kind is not FaultKind.OPERATE)
    return msgspec.structs.replace(plan, entries=tuple(entries))


def _entry(entry: DrawnEvent, plan: Draw) -> DrawnEvent:
    kind = _SAME.get(entry.kind, entry.kind)
    lasts_us = plan.end_us - entry.at_us if entry.kind is FaultKind.NODE_LEAVE else entry.lasts_us
    return msgspec.structs.replace(entry, kind=kind, lasts_us=lasts_us)


def compare(
    scenario: SacScenario, seeds: Sequence[int], *, progress: Callable[[int], object] = lambda _: None
) -> Bridge:
    """Run both with each seed. `progress` is called after each run."""
    other = counterpart(scenario)
    gaps: tuple[list[int], list[int]] = ([], [])
    overlaps: tuple[list[int], list[int]] = ([], [])
    violations = [0, 0]
    watched_us = 0
    for seed in seeds:
        plan = plan_of(scenario, seed)
        watched_us += plan.end_us * scenario.partitions
        consumers, members = ConsumerShifts(), MemberShifts()
        results = (
            run(scenario, seed, plan=plan, checkers=[consumers]),
            run(other, seed, plan=translated(plan), checkers=[members]),
        )
        for index, (shifts, result) in enumerate(zip((consumers, members), results, strict=True)):
            gaps[index].extend(shifts.gaps)
            overlaps[index].extend(shifts.overlaps)
            violations[index] += len(result.violations)
            progress(1)
    names = ("single active consumers", "consumer group (KIP-848)")
    first, second = (
        _protocol(names[index], gaps[index], overlaps[index], watched_us, violations[index])
        for index in range(2)
    )
    return Bridge(
        scenario=scenario.name,
        seeds=len(seeds),
        members=scenario.group.members,
        partitions=scenario.partitions,
        virtual_seconds=watched_us / 1_000_000 / max(1, len(seeds) * scenario.partitions),
        protocols=(first, second),
    )


def _protocol(
    name: str, gaps: Sequence[int], overlaps: Sequence[int], watched_us: int, violations: int
) -> Protocol:
    ordered = sorted(gaps)
    return Protocol(
        name=name,
        gaps=len(ordered),
        without_consumer_s=sum(ordered) / 1_000_000,
        share_without_consumer=sum(ordered) / watched_us if watched_us else 0.0,
        median_s=_quantile(ordered, 0.5),
        p99_s=_quantile(ordered, 0.99),
        longest_s=_quantile(ordered, 1.0),
        overlaps=len(overlaps),
        two_consumers_s=sum(overlaps) / 1_000_000,
        violations=violations,
    )


def _quantile(ordered: Sequence[int], share: float) -> float | None:
    return nearest_rank(ordered, share) / 1_000_000 if ordered else None
