"""One run of a scenario with a seed, in real time, on real brokers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import msgspec

from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.coordinator.protocol.regular_expressions import matching
from fencepost.coordinator.protocol.slices import at_once
from fencepost.simulation.brokers.address import kafka_addresses
from fencepost.simulation.brokers.identity import examine
from fencepost.simulation.kernel.observers import Observer
from fencepost.simulation.lab.chaos import messages as m
from fencepost.simulation.lab.chaos.admin import Admin, TopicTaken
from fencepost.simulation.lab.chaos.kept import AnyRun, judge, keep, kept
from fencepost.simulation.lab.chaos.playable import playable
from fencepost.simulation.lab.chaos.real_run import Progress, RealRun
from fencepost.simulation.lab.chaos.result import ChaosResult
from fencepost.simulation.lab.chaos.run_kinds import RealApplicationRun, RealConsumerRun
from fencepost.simulation.lab.chaos.time_scale import DEFAULT_US, tempo
from fencepost.simulation.lab.clusters.cluster import RealCluster
from fencepost.simulation.scenarios.scenario import Scenario
from fencepost.simulation.scenarios.streams import StreamsScenario
from fencepost.simulation.trace.rows import TraceSink

_EXAMINE_S: Final = 20.0
_RUNS: Final[Mapping[str, type[RealRun[Any]]]] = {
    "consumer": RealConsumerRun,
    "streams": RealApplicationRun,
}
"""The class of a run, by the kind of its scenario."""


async def run_real(
    scenario: Scenario | StreamsScenario,
    seed: int,
    cluster: RealCluster | str,
    *,
    client: m.ClientName = "fencepost",
    duration_us: int = DEFAULT_US,
    observers: Iterable[Observer] = (),
    trace: TraceSink | None = None,
    progress: Progress | None = None,
    flaw: str = "",
    keep_in: Path | None = None,
) -> ChaosResult:
    """Play the scenario within that time. The cluster is one of ours that is up, or HOST:PORT of another one.

    A cluster of ours may be disturbed. On another one, only the run's own topics and group are touched. The
    caller closes the trace. Nothing is left when this ends, except topics on a cluster of ours if it fails.

    `keep_in` is a file for `run_again`. `observers` get what the judges get. The clients of a Streams
    application are fencepost's, and have judges of their own.

    :raises FencepostError: if the time is too short for the scenario, or it can't be played with the client
        (`playable`).
    :raises EnvironmentLacks: if the client is not installed; if the cluster can't be reached, lacks KIP-848,
        or has such topics already; or if another program ends a member's process.
    """
    playable(scenario, client)
    began = time.perf_counter()
    own = cluster if isinstance(cluster, RealCluster) else None
    servers = (
        cluster.bootstrap_servers
        if isinstance(cluster, RealCluster)
        else ",".join(map(str, kafka_addresses(cluster, "--cluster")))
    )
    if own is None:
        await examine(servers, _EXAMINE_S)
    async with AsyncExitStack() as stack:
        admin = Admin(servers)
        stack.push_async_callback(admin.close)
        config = await admin.configuration()
        await _require_vacant(admin, scenario)
        played = tempo(scenario, seed, config, duration_us)
        real = _RUNS[scenario.protocol](
            played, seed, admin, servers, config=config, own=own, client=client, flaw=flaw
        )
        async with real:
            await real.play(progress)
    run = real.kept()
    judged = judge(run, observers, trace)
    result = ChaosResult(
        scenario=scenario.name,
        seed=seed,
        members=scenario.group.members,
        partitions=scenario.partitions,
        virtual_seconds=real.ended_us / 1_000_000,
        wall_seconds=time.perf_counter() - began,
        events=len(real.happenings),
        **judged._asdict(),
        records_sent=len(real.ledger.acknowledged),
        records_lost=len(real.missing),
        records_duplicated=real.ledger.duplicated,
        client=client,
        cluster=servers if own is None else own.state.runner,
        nodes=len(real.brokers.brokers),
        speed=1 / real.factor,
        skipped=real.skipped,
    )
    if keep_in is not None:
        keep(run, result, keep_in)
    return result


def run_again(
    path: Path, *, observers: Iterable[Observer] = (), trace: TraceSink | None = None
) -> tuple[AnyRun, ChaosResult]:
    """Judge a run that was kept in a file. Return it, and its result as the judge finds it now.

    :raises FencepostError: if it is no such file.
    """
    run, result = kept(path)
    return run, msgspec.structs.replace(result, **judge(run, observers, trace)._asdict())


async def _require_vacant(admin: Admin, scenario: Scenario | StreamsScenario) -> None:
    """Check that the run may create its topics and its group, and that its members read no other topic.

    :raises EnvironmentLacks: if the cluster has one of them, or another topic that members would read.
    """
    for name in _RUNS[scenario.protocol].topics_of(scenario):
        if await admin.partitions(name):
            raise TopicTaken(name)
    if await admin.group_exists(scenario.group.id):
        raise EnvironmentLacks(
            f"the cluster has a group {scenario.group.id} already: choose another group.id for the scenario"
        )
    if found := scenario.patterns:
        topics = await admin.topics()
        for pattern in found:
            for topic in at_once(matching(pattern, topics)):
                raise EnvironmentLacks(
                    f"the cluster has a topic {topic}, which members would read because of the pattern"
                    f" {pattern!r}: expected a cluster without it, or a pattern that does not match it"
                )
