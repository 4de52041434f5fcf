"""One run of a scenario with a seed, in real time, on real brokers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.coordinator.protocol.outcome import Outcome, Request, Response
from fencepost.coordinator.protocol.regular_expressions import matching
from fencepost.coordinator.protocol.slices import at_once
from fencepost.member.streams.application.changelog import changelog_topic
from fencepost.simulation.brokers.address import kafka_addresses
from fencepost.simulation.brokers.identity import examine
from fencepost.simulation.kernel.observers import Observer
from fencepost.simulation.lab.chaos import messages as m
from fencepost.simulation.lab.chaos.admin import Admin, TopicTaken
from fencepost.simulation.lab.chaos.playable import patterns, playable
from fencepost.simulation.lab.chaos.result import ChaosResult
from fencepost.simulation.lab.chaos.stage import RealStage
from fencepost.simulation.lab.chaos.staging import Progress, Staging
from fencepost.simulation.lab.chaos.streams.stage import RealApplicationStage
from fencepost.simulation.lab.chaos.time_scale import DEFAULT_US, tempo
from fencepost.simulation.lab.clusters.cluster import RealCluster
from fencepost.simulation.scenarios.scenario import CreateTopic, Scenario
from fencepost.simulation.scenarios.streams import StreamsScenario
from fencepost.simulation.trace.rows import TraceRows, TraceSink
from fencepost.simulation.trace.writer import TraceWriter

WORLD: Final = "real"
_EXAMINE_S: Final = 20.0
_UNSEEN: Final = frozenset({"commit-before-release"})
"""What can't be judged of members that do not tell of their requests."""
_OF_COORDINATOR: Final = frozenset(
    {"one-claimant", "progress", "quiet", "gone-members", "reply-equals-state"}
)
"""What can't be judged of a group whose coordinator shows no log."""


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
) -> ChaosResult:
    """Play the scenario within that time. The cluster is one of ours that is up, or HOST:PORT of another's.

    A cluster of ours may be disturbed; of another's only the run's own topics and group are touched. The
    caller closes the trace. Nothing is left when this ends, but topics on a cluster of ours if it fails.

    `observers` are told what the checkers are told. The clients of a Streams application are fencepost's, and
    judged by checkers of their own.

    :raises FencepostError: if the time is too short for the scenario, or it can't be played with the client
        (`playable`).
    :raises EnvironmentLacks: if the client is not installed; if the cluster can't be reached, lacks KIP-848,
        or has such topics already; or if a member's process is ended by somebody else.
    """
    playable(scenario, client)
    began = time.perf_counter()
    own = cluster if isinstance(cluster, RealCluster) else None
    if isinstance(cluster, RealCluster):
        servers = cluster.bootstrap_servers
    else:
        servers = ",".join(map(str, kafka_addresses(cluster, "--cluster")))
        await examine(servers, _EXAMINE_S)
    recorder = TraceRows(world=WORLD, group=scenario.group.id, sink=trace)
    trace_writer = RealTraceWriter(recorder)
    async with AsyncExitStack() as stack:
        admin = Admin(servers)
        stack.push_async_callback(admin.close)
        config = await admin.configuration()
        await _require_vacant(admin, scenario)
        if isinstance(scenario, StreamsScenario):
            application = RealApplicationStage(
                tempo(scenario, seed, config, duration_us),
                seed,
                admin,
                servers,
                config=config,
                own=own,
                flaw=flaw,
            )
            async with application:
                await application.play(progress)
            told = application.retell(recorder)
            return _result(
                application,
                scenario,
                seed,
                began=began,
                cluster=servers if own is None else own.state.runner,
                client="fencepost",
                heartbeats=told.heartbeats,
                rebalances=told.rebalances,
                converged=told.settled,
                violations=told.application.violations,
                digest=recorder.digest(),
                figures=told.application.figures,
            )
        played = tempo(scenario, seed, config, duration_us)
        stage = RealStage(played, seed, admin, servers, config=config, own=own, client=client, flaw=flaw)
        async with stage:
            await stage.play(progress)
        checkers = _checkers(client, observed=stage.observed is not None)
        replayed = stage.retell([trace_writer, *checkers, *observers], recorder)
    return _result(
        stage,
        scenario,
        seed,
        began=began,
        cluster=servers if own is None else own.state.runner,
        client=client,
        heartbeats=trace_writer.heartbeats,
        rebalances=trace_writer.rebalances,
        converged=replayed.settled,
        violations=replayed.violations,
        digest=recorder.digest(),
    )


def _result(
    stage: Staging[Any], scenario: Scenario | StreamsScenario, seed: int, *, began: float, **more: Any
) -> ChaosResult:
    return ChaosResult(
        scenario=scenario.name,
        seed=seed,
        members=scenario.group.members,
        partitions=scenario.partitions,
        virtual_seconds=stage.ended_us / 1_000_000,
        wall_seconds=time.perf_counter() - began,
        events=len(stage.happenings),
        records_sent=len(stage.ledger.acknowledged),
        records_lost=len(stage.missing),
        records_duplicated=stage.ledger.duplicated,
        nodes=len(stage.brokers.brokers),
        speed=1 / stage.factor,
        skipped=stage.skipped,
        **more,
    )


def _checkers(client: m.ClientName, *, observed: bool) -> Sequence[Observer]:
    """Those that can judge what there is to see."""
    from fencepost.simulation.checkers import real_checkers

    checkers = real_checkers()
    for checker in checkers:
        if client != "fencepost":
            checker.left_out |= _UNSEEN
        if not observed:
            checker.left_out |= _OF_COORDINATOR
    return checkers


async def _require_vacant(admin: Admin, scenario: Scenario | StreamsScenario) -> None:
    """A run makes and deletes its topics and its group, and its members read no other topic.

    :raises EnvironmentLacks: if the cluster has one of them, or a topic that members would read besides.
    """
    made = [step.name for step in scenario.steps if isinstance(step, CreateTopic)]
    if isinstance(scenario, StreamsScenario):
        made += [each.name for each in (scenario.global_topic,) if each is not None]
        if scenario.application.changelogs:
            made += [changelog_topic(scenario.group.id, topic.name) for topic in scenario.topics]
    for name in dict.fromkeys([*(topic.name for topic in scenario.topics), *made]):
        if await admin.partitions(name):
            raise TopicTaken(name)
    if await admin.group_exists(scenario.group.id):
        raise EnvironmentLacks(
            f"the cluster has a group {scenario.group.id} already: choose another group.id for the scenario"
        )
    if isinstance(scenario, Scenario) and (found := patterns(scenario)):
        topics = await admin.topics()
        for pattern in found:
            for topic in at_once(matching(pattern, topics)):
                raise EnvironmentLacks(
                    f"the cluster has a topic {topic}, which members would read because of the pattern"
                    f" {pattern!r}: expected a cluster without it, or a pattern that does not match it"
                )


class RealTraceWriter(TraceWriter):
    """Writes what members and the coordinator's log tell."""

    def on_member_response(
        self, host: str, request: Request, response: Response | Exception, now_us: int
    ) -> None:
        """A heartbeat was answered."""
        if isinstance(request, ConsumerGroupHeartbeatRequest) and isinstance(
            response, ConsumerGroupHeartbeatResponse
        ):
            super()._heartbeat(request, Outcome(reply=response), now_us)

    def _heartbeat(self, event: ConsumerGroupHeartbeatRequest, outcome: Outcome, now_us: int) -> None:
        """The coordinator's side of a heartbeat: its row is written when the member hears of it."""
