"""A world of one Streams application: the cluster, the network, the clients' hosts, and the checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.outcome import Event, Outcome
from fencepost.coordinator.protocol.streams import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)
from fencepost.member.streams.actions import Level, Moved, Refused
from fencepost.member.streams.client_states import StreamClientState
from fencepost.member.streams.thread_states import StreamThreadState
from fencepost.simulation.checkers.catalogue import INVARIANTS
from fencepost.simulation.nodes.cluster import Cluster
from fencepost.simulation.scenarios.streams import StreamsScenario
from fencepost.simulation.streams.checks import ClientChecker, Progress
from fencepost.simulation.streams.client import ClientHost
from fencepost.simulation.streams.failures import Injected
from fencepost.simulation.trace.recorder import Recorder
from fencepost.simulation.trace.schema import Kind
from fencepost.simulation.world.loop import VirtualLoop
from fencepost.simulation.world.network import Network
from fencepost.simulation.world.observers import Observer, Violation, hook_lists
from fencepost.simulation.world.rng import Streams

REPORTS_PER_INVARIANT = 5


class _Coordination(Observer):
    """What the coordinator does, for the world."""

    def __init__(self, world: StreamsWorld) -> None:
        self._world = world

    def on_coordinator_step(self, host: str, event: Any, outcome: Outcome, now_us: int) -> None:
        self._world.answered(event, outcome)

    def on_coordinator_state(self, host: str, what: str, now_us: int) -> None:
        self._world.coordinator(host, what)


class StreamsWorld:
    """Everything of one run."""

    def __init__(self, scenario: StreamsScenario, seed: int, loop: VirtualLoop, recorder: Recorder) -> None:
        self.scenario = scenario
        self.loop = loop
        self.recorder = recorder
        self.streams = Streams(seed)
        self.config = GroupCoordinatorConfig.from_properties(scenario.config)
        self.violations: list[Violation] = []
        self.faults_over = False
        self.heartbeats = 0
        self.rebalances = 0
        self.shutdowns_us: list[int] = []
        """From a handler's answer to ERROR, for each client that was reached."""
        self.progress = Progress(self.report)
        self.network = Network(
            loop,
            self.streams,
            latency=scenario.network.latency.quantiles,
            detection=scenario.network.detection.quantiles,
            on_loss=lambda *_: None,
        )
        self.cluster = Cluster(
            loop,
            self.streams,
            scenario.cluster,
            self.config,
            network=self.network,
            hooks=hook_lists([_Coordination(self)]),
        )
        self.callback_times = self.streams.samples("callbacks", scenario.application.callback.quantiles)
        self.processing_times = self.streams.samples("processing", scenario.application.processing.quantiles)
        self._restarts = self.streams.samples("restarts", scenario.application.restart.quantiles)
        self._starts = self.streams.samples("starts", scenario.group.start.quantiles)
        width = len(str(scenario.group.members))
        names = [f"client-{number:0{width}}" for number in range(1, scenario.group.members + 1)]
        self.clients: dict[str, ClientHost] = {name: ClientHost(name, self) for name in names}
        self._checkers: dict[str, ClientChecker] = {}
        self.unreachable: dict[str, int] = {}
        """Until when a client was, or is, cut off; by name."""
        self.asked_us: int | None = None
        """When a handler asked for the application to be shut down, first."""
        self._coordinator_changed_us = 0
        self._emptied_us = 0
        """When the group had no members: with the last one the coordinator forgets what was asked of it."""
        self._group_epoch = 0

    # -- what happens -------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Create the topics, put a coordinator in charge, and let the clients start."""
        for topic in self.scenario.topics:
            self.cluster.create_topic(topic.name, topic.partitions, topic.records_per_second)
        self.cluster.elect()
        for host in self.clients.values():
            self.loop.schedule(self.loop.now_us + self._starts.draw(), _start, host)

    def restart_later(self, host: ClientHost) -> None:
        """Start a client again after the time that this takes, unless the application was shut down."""
        if self.asked_us is None:
            self.loop.schedule(self.loop.now_us + self._restarts.draw(), self._restart, host)

    def _restart(self, host: ClientHost) -> None:
        if self.asked_us is None:
            host.start()

    def calm(self) -> None:
        """Nothing disturbs the application from here on."""
        for broker in self.cluster.brokers.values():
            if not broker.up:
                broker.revive()
        for host in self.clients.values():
            host.injected.clear()
        self.faults_over = True
        self.recorder.add(self.loop.now_us, "", Kind.FAULTS_END.value)

    def end(self) -> bool:
        """The run is over. Answers whether everything had settled; then all processes go."""
        settled = self._settled()
        if settled is not None:
            self.report("streams-settles", settled)
        self.vanish()
        return settled is None

    def vanish(self) -> None:
        """All processes go, and tell nobody."""
        for host in self.clients.values():
            if not host.ended:
                host.release()

    def _settled(self) -> str | None:
        """What has not settled."""
        coordinator = self.cluster.active
        if coordinator is None:
            return "nobody coordinates"
        expected = set()
        for host in self.clients.values():
            if host.engine is None:
                if self.asked_us is None:
                    return f"{host.name} does not run"
                continue
            client = host.engine.client
            states = [thread.state for thread in client.live]
            if client.state is not StreamClientState.RUNNING or set(states) - {StreamThreadState.RUNNING}:
                return f"{host.name} is {client.state}, its live threads are {', '.join(states) or 'none'}"
            expected |= {host.members[thread.name].member_id for thread in client.live}
        members = self._members(coordinator)
        if members != expected:
            return f"the group has {len(members)} members, and there are {len(expected)} threads"
        return None

    def _members(self, coordinator: GroupCoordinator) -> set[str]:
        group = coordinator.streams.groups.get(self.scenario.group.id)
        return set() if group is None else set(group.members)

    # -- what is told -------------------------------------------------------------------------------------

    def report(self, invariant: str, message: str) -> None:
        """Take a finding down, unless there were enough of its kind.

        :raises KeyError: if the catalogue has no such invariant.
        """
        INVARIANTS[invariant]
        now = self.loop.now_us
        if sum(each.invariant == invariant for each in self.violations) < REPORTS_PER_INVARIANT:
            self.recorder.add(now, "", Kind.VIOLATION.value, error=invariant, detail=message)
            self.violations.append(
                Violation(invariant=invariant, seq=self.recorder.seq, t_us=now, message=message)
            )

    def _host(self, host: ClientHost, what: str) -> None:
        self.recorder.add(self.loop.now_us, host.name, Kind.HOST.value, detail=what)

    def on_start(self, host: ClientHost) -> None:
        """A process starts."""
        self._host(host, "start")
        self._checkers[host.name] = ClientChecker(host, self.report)

    def on_crash(self, host: ClientHost) -> None:
        """A process dies."""
        self._host(host, "crash")
        self.unreachable[host.name] = self.loop.now_us

    def on_end(self, host: ClientHost, state: StreamClientState) -> None:
        """A client is over, in NOT_RUNNING or ERROR."""
        self._host(host, "stopped")
        if state is StreamClientState.ERROR and self.asked_us is not None:
            self.shutdowns_us.append(self.loop.now_us - self.asked_us)
        self.restart_later(host)

    def on_step(self, host: ClientHost, step: Moved | Refused) -> None:
        """A machine of a client moved, or refused to."""
        if isinstance(step, Moved):
            kind = Kind.CLIENT_STATE if step.level is Level.CLIENT else Kind.THREAD_STATE
            self.recorder.add(
                self.loop.now_us,
                step.name,
                kind.value,
                state_from=step.source,
                state_to=step.target,
                detail=step.event,
            )
        self._checkers[host.name].on_step(step)
        self.look_at(host)

    def look_at(self, host: ClientHost) -> None:
        """Check a client, once everything has followed from what happens now."""
        self.loop.schedule(self.loop.now_us, self._look, (host, host.generation))

    def _look(self, due: tuple[ClientHost, int]) -> None:
        host, generation = due
        if host.generation == generation:
            self._checkers[host.name].look()

    def on_listener(self, host: ClientHost, new: StreamClientState, old: StreamClientState) -> None:
        """A client's listener was called."""
        self._checkers[host.name].on_listener(new, old)

    def on_failure(self, host: ClientHost, thread: str, injected: Injected | None) -> None:
        """The handler is asked about an exception of a thread."""
        said = "organic" if injected is None else f"{injected.answer} {injected.where}"
        self.recorder.add(self.loop.now_us, thread, Kind.THREAD_FAILED.value, detail=said)
        checker = self._checkers[host.name]
        checker.on_failure(thread, injected)
        self.look_at(host)
        if injected is not None and injected.answer == "SHUTDOWN_APPLICATION":
            if self.asked_us is None:
                self.asked_us = self.loop.now_us
            self._expect_error(host, asked=True)

    def expect(self, host: ClientHost, threads: int) -> None:
        """So many live threads more, or less, are wanted of a client."""
        self._checkers[host.name].live += threads
        self.look_at(host)

    def told(self, host: ClientHost) -> None:
        """The group told a member that the application is to be shut down."""
        self._checkers[host.name].may_fail = True
        if self.asked_us is None:
            self.report("streams-shutdown-cause", f"{host.name} was told, and nobody has asked")

    def processed(self, partition: TopicPartition, first: int, end: int) -> None:
        """A thread has processed these."""
        self.progress.processed(partition, first, end)

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """A thread has committed these."""
        self.progress.committed(offsets)

    def fault(self, kind: str, phase: str, detail: str) -> None:
        """A fault begins or ends."""
        self.recorder.add(self.loop.now_us, kind, Kind.FAULT.value, state_to=phase, detail=detail)

    # -- the coordinator ------------------------------------------------------------------------------------

    def coordinator(self, host: str, what: str) -> None:
        """A coordinator's host changed."""
        self.recorder.add(self.loop.now_us, host, Kind.COORDINATOR.value, detail=what)
        self._coordinator_changed_us = self.loop.now_us

    def answered(self, event: Event, outcome: Outcome) -> None:
        """A coordinator made a step."""
        reply = outcome.reply
        if not isinstance(event, StreamsGroupHeartbeatRequest) or not isinstance(
            reply, StreamsGroupHeartbeatResponse
        ):
            return
        self.heartbeats += 1
        group = (
            None if self.cluster.active is None else self.cluster.active.streams.groups.get(event.group_id)
        )
        if group is not None and group.group_epoch != self._group_epoch:
            self._group_epoch = group.group_epoch
            self.rebalances += 1
        if group is None or not group.members:
            self._emptied_us = self.loop.now_us
        if event.shutdown_application and reply.error_code is ErrorCode.NONE:
            for host in self.clients.values():
                self._expect_error(host)

    def _expect_error(self, host: ClientHost, *, asked: bool = False) -> None:
        """From now on this client, perhaps the one that has asked, has the bound's time to be in ERROR."""
        if not host.ended:
            due = self.loop.now_us + self.scenario.bound_us
            self.loop.schedule(due, self._error_due, (host, host.generation, self.loop.now_us, asked))

    def _error_due(self, due: tuple[ClientHost, int, int, bool]) -> None:
        host, generation, since_us, asked = due
        undisturbed = (
            self.unreachable.get(host.name, -1) < since_us and self._coordinator_changed_us < since_us
        )
        undisturbed = undisturbed and (asked or self._emptied_us < since_us)
        if host.generation == generation and undisturbed and host.engine is not None:
            state = host.engine.client.state
            self.report(
                "streams-shutdown-reaches", f"{host.name} is {state} {self.scenario.bound_us} us after"
            )


def _start(host: ClientHost) -> None:
    host.start()
