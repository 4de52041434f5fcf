"""A world of one Streams application: the cluster, the network, the clients' hosts, and the checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol.classic import HeartbeatResponse
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.outcome import Event, Outcome
from fencepost.coordinator.protocol.streams import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)
from fencepost.coordinator.streams.states import StreamsGroupState
from fencepost.member.streams.actions import MoveRefused, StreamsMoved
from fencepost.member.streams.client_states import StreamClientState
from fencepost.member.streams.thread_states import StreamThreadState
from fencepost.simulation.faults.plan import FaultPlan
from fencepost.simulation.judge.classic_rounds import ClassicRounds
from fencepost.simulation.kafka.broker import BrokerHost
from fencepost.simulation.kafka.cluster import SimulatedCluster
from fencepost.simulation.kernel.loop import VirtualLoop
from fencepost.simulation.kernel.observers import Observer
from fencepost.simulation.kernel.world import PreparedRun, RunCounts, World, host_names
from fencepost.simulation.scenarios.streams import StreamsScenario
from fencepost.simulation.scenarios.timing import is_answered
from fencepost.simulation.streams.application import ApplicationOutcomes
from fencepost.simulation.streams.client import StreamsClientHost
from fencepost.simulation.streams.client_judge import ClientJudge
from fencepost.simulation.streams.coordination import StreamsCoordination
from fencepost.simulation.streams.failures import said
from fencepost.simulation.streams.member import SimulatedMember
from fencepost.simulation.streams.other_applications import ApplicationNemesis, OtherApplications
from fencepost.simulation.streams.thread_requests import ThreadRequests
from fencepost.simulation.trace.rows import TraceRows


class _Coordination(Observer):
    """Passes the coordinator's steps on to the world."""

    def __init__(self, world: StreamsWorld) -> None:
        self._world = world

    def on_coordinator_step(self, host: str, event: Any, outcome: Outcome, now_us: int) -> None:
        self._world.answered(event, outcome)

    def on_coordinator_state(self, host: str, what: str, now_us: int) -> None:
        self._world.application.on_coordinator(host, what)
        self._world.others.coordinator_changes += 1

    def on_loss(self, host: str, broker: str, kind: str, request: Any, now_us: int) -> None:
        self._world.application.on_lost(host)


class StreamsWorld(World):
    """Everything of one run."""

    def __init__(
        self,
        scenario: StreamsScenario,
        seed: int,
        loop: VirtualLoop,
        recorder: TraceRows,
        observers: Iterable[Observer] = (),
    ) -> None:
        super().__init__(scenario.application, loop, seed, lambda: recorder.seq)
        self.delay_timers(scenario.application.timer_delay)
        self.scenario = scenario
        self.config = GroupCoordinatorConfig.from_properties(scenario.config)
        self.heartbeats = 0
        self.rebalances = 0
        classic = scenario.group.protocol == "classic"
        self.requests = ThreadRequests()
        """Judges the requests of threads, unless they speak the classic protocol."""
        self.members: dict[str, SimulatedMember] = {}
        """The newest member of each thread, by the thread's name."""
        judges = [ClassicRounds()] if classic else [StreamsCoordination(), self.requests]
        self.attach([_Coordination(self), *judges, *observers])
        self.cluster = SimulatedCluster(loop, self.draws, scenario, self.config, hooks=self.hooks)
        self.network = self.cluster.network
        self.journal: MemoryJournal = self.cluster.journal
        self.coordinators: Mapping[str, BrokerHost] = self.cluster.brokers
        self.hosts_by_member: Mapping[MemberId, str] = {}
        """No hosts: the clients report what members receive."""
        self._restarts = self.draws.samples("restarts", scenario.application.restart.quantiles)
        self._starts = self.draws.samples("starts", scenario.group.start.quantiles)
        self.clients: dict[str, StreamsClientHost] = {
            name: StreamsClientHost(name, self) for name in host_names("client", scenario.group.members)
        }
        self.others = OtherApplications(self)
        """The applications that use the same cluster for a moment."""
        self.application = ApplicationOutcomes(
            self.clients,
            loop,
            recorder,
            scenario.bound_us if is_answered(scenario) else None,
            request_timeout_us=scenario.network.request_timeout.us if classic else None,
        )
        self.violations = self.application.violations
        self._judges: dict[str, ClientJudge] = {}
        self._group_epoch = 0
        self._ended_us = 0
        """Time at which the last client ended, in microseconds."""
        self._calm_us = 0
        """Time at which the last fault ended, in microseconds."""
        self._disturbed_us = 0
        """Time at which a thread last left because a batch outlasted the poll interval, or came back
        afterwards."""

    @property
    def active(self) -> GroupCoordinator | None:
        """The coordinator that answers requests now, if there is one."""
        return self.cluster.active

    def report(self, invariant: str, message: str, /, rule: str = "") -> None:
        """Report a violation."""
        self.application.add_violation(invariant, message, rule)

    # -- what happens -------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Create the topics, put a coordinator in charge, and let the clients start."""
        self.cluster.begin(self.scenario.all_topics)
        for host in self.clients.values():
            self.loop.schedule(self.loop.now_us + self._starts.draw(), _start, host)

    def restart_later(self, host: StreamsClientHost) -> None:
        """Start a client again after the time of a restart, unless the application was shut down."""
        if self.application.asked_us is None:
            self.loop.schedule(self.loop.now_us + self._restarts.draw(), self._restart, host)

    def _restart(self, host: StreamsClientHost) -> None:
        if self.application.asked_us is None:
            host.start()

    def calm(self) -> None:
        """End all disturbance of the application."""
        self.application.heal()
        self.cluster.calm()
        for host in self.clients.values():
            host.injected.clear()
            if not host.process and self.application.asked_us is None:
                host.start()  # a client that was to start later
        self.faults_over = True
        self._calm_us = self.loop.now_us
        self.application.on_faults_end()

    def disturb(self) -> None:
        """Restart the time to settle: a thread that did not poll in time disturbs its group itself."""
        self._disturbed_us = self.loop.now_us

    def end(self) -> bool:
        """Report an application that has not settled in time, and end all processes."""
        unsettled = self._unsettled()
        unfinished = unsettled or self._unreconciled()
        had_time = self.loop.now_us >= self._calm_us + self.scenario.settling_us
        if unfinished is not None and had_time and is_answered(self.scenario) and not self._is_disturbed:
            self.application.report("streams-settles", unfinished)
        for method in self.hooks["on_end"]:
            method(self.loop.now_us)
        self.vanish()
        return unsettled is None

    @property
    def _is_disturbed(self) -> bool:
        if self._disturbed_us and self.loop.now_us <= self._disturbed_us + self.scenario.bound_us:
            return True
        return any(member.is_late for host in self.clients.values() for member in host.members.values())

    def vanish(self) -> None:
        """End all processes without notifying any peer."""
        self.others.vanish()
        for host in self.clients.values():
            if not host.ended:
                host.release()

    @property
    def settled(self) -> bool:
        """True if all clients run, and the group has their threads as its members."""
        return self._unsettled() is None

    def _unsettled(self) -> str | None:
        """Return what has not settled yet; None if all has."""
        coordinator = self.cluster.active
        if coordinator is None:
            return "no coordinator is active"
        expected = set()
        for host in self.clients.values():
            if host.engine is None:
                if self.application.asked_us is None and not host.refused:
                    return f"{host.name} does not run"
                continue
            client = host.engine.client
            states = [thread.state for thread in client.live]
            if not states and client.is_running:
                continue  # its last thread was removed: its state stays
            if client.state is not StreamClientState.RUNNING or set(states) - {StreamThreadState.RUNNING}:
                return f"{host.name} is {client.state}, its live threads are {', '.join(states) or 'none'}"
            expected |= {host.members[thread.name].member_id for thread in client.live}
        members = self._members(coordinator)
        if members != expected and not (self._sessions_go_on and members > expected):
            return f"the group has {len(members)} members, and there are {len(expected)} threads"
        return None

    def _unreconciled(self) -> str | None:
        """Return what the group, or one of its members, still lacks of the target; None if nothing."""
        coordinator = self.cluster.active
        group_id = self.scenario.group.id
        group = None if coordinator is None else coordinator.streams.groups.get(group_id)
        if group is None or not group.members:
            return None
        if group.state is not StreamsGroupState.STABLE:
            return f"the group is {group.state} at epoch {group.group_epoch}"
        for host in self.clients.values():
            threads = () if host.engine is None else host.engine.client.live
            for driver in (host.members[thread.name].driver for thread in threads):
                member = group.members.get(driver.member_id)
                if member is not None and len(driver.assignment) != sum(
                    len(numbers) for numbers in member.assigned.active.values()
                ):
                    return f"{driver.member_id} owns {len(driver.assignment)} partitions of its tasks"
        return None

    @property
    def _sessions_go_on(self) -> bool:
        """True if classic members that were told to end may still be in the group: they do not leave it."""
        group = self.scenario.group
        told = group.protocol == "classic" and self.application.asked_us is not None
        return told and self.loop.now_us <= self._ended_us + group.session_timeout.us

    def _members(self, coordinator: GroupCoordinator) -> set[str]:
        found = coordinator.kinds.find(self.scenario.group.id)
        return set() if found is None else set(found[1].members)

    # -- messages -----------------------------------------------------------------------------------------

    def on_start(self, host: StreamsClientHost) -> None:
        """A process starts."""
        self.application.on_host(host.name, "start")
        self._judges[host.name] = ClientJudge(host, self.scenario.group.threads, self.application.report)

    def on_end(self, host: StreamsClientHost, state: StreamClientState) -> None:
        """A client is over, in NOT_RUNNING or ERROR."""
        self._judges[host.name].look()  # for the last time: the process ends before what is due
        self.application.on_end(host, state)
        self._ended_us = self.loop.now_us
        if not host.refused:
            self.restart_later(host)

    def on_step(self, host: StreamsClientHost, step: StreamsMoved | MoveRefused) -> None:
        """A machine of a client moved, or refused to."""
        self.application.on_step(step)
        self._judges[host.name].on_step(step)
        self.look_at(host)

    def look_at(self, host: StreamsClientHost) -> None:
        """Check a client, once everything has followed from what happens now."""
        self.loop.schedule(self.loop.now_us, self._look, (host, host.generation))

    def _look(self, due: tuple[StreamsClientHost, int]) -> None:
        host, generation = due
        if host.generation == generation:
            self._judges[host.name].look()

    def on_listener(self, host: StreamsClientHost, new: StreamClientState, old: StreamClientState) -> None:
        """A client's listener was called."""
        self._judges[host.name].on_listener(new, old)

    def on_failure(self, host: StreamsClientHost, thread: str, error: BaseException) -> None:
        """The handler is asked about an exception of a thread, or of the global thread."""
        judge = self._judges[host.name]
        if host.is_global(thread):
            judge.on_global_failure(error)
        else:
            judge.on_failure(thread, error)
        self.application.on_failure(host, thread, *said(error))
        self.look_at(host)

    def expect(self, host: StreamsClientHost, threads: int) -> None:
        """Expect that many more, or fewer, live threads of a client."""
        self._judges[host.name].live += threads
        self.look_at(host)

    def told(self, host: StreamsClientHost) -> None:
        """The group told a member that the application is to be shut down."""
        self._judges[host.name].may_fail = True
        self.application.told(host)
        if self.scenario.group.protocol == "classic":
            self.application.on_asked()

    tell_member = World.tell
    """Passes on what a thread's member does, or what happens to it."""

    def tell(self, hook: str, *arguments: Any) -> None:
        """Report a fault to the application: `on_fault`, or `cut_off`."""
        getattr(self.application, hook)(*arguments)
        if hook in self.hooks:
            super().tell(hook, *arguments)

    # -- the coordinator ----------------------------------------------------------------------------------

    def answered(self, event: Event, outcome: Outcome) -> None:
        """A coordinator made a step."""
        if getattr(event, "group_id", self.scenario.group.id) != self.scenario.group.id:
            return
        reply = outcome.reply
        beats = isinstance(reply, StreamsGroupHeartbeatResponse)
        if beats or (isinstance(reply, HeartbeatResponse) and reply.error_code is ErrorCode.NONE):
            self.heartbeats += 1
        if not beats and self.scenario.group.protocol != "classic":
            return
        active = self.cluster.active
        found = None if active is None else active.kinds.find(self.scenario.group.id)
        if found is not None and (epoch := found[0].epoch(found[1])) != self._group_epoch:
            self._group_epoch = epoch
            self.rebalances += 1
        if found is None or not found[1].members:
            self.application.on_emptied()
        asks = isinstance(event, StreamsGroupHeartbeatRequest) and event.shutdown_application
        if asks and isinstance(reply, StreamsGroupHeartbeatResponse) and reply.error_code is ErrorCode.NONE:
            self.application.on_asked()


def _start(host: StreamsClientHost) -> None:
    host.start()


def prepare(
    scenario: StreamsScenario,
    seed: int,
    plan: FaultPlan,
    loop: VirtualLoop,
    recorder: TraceRows,
    *,
    judges: Iterable[Observer] | None = None,
) -> PreparedRun:
    """Return the run of a scenario and a seed, with the trace and all checks, and `judges` in addition."""
    world = StreamsWorld(scenario, seed, loop, recorder, judges or ())

    def counts() -> RunCounts:
        return RunCounts(world.heartbeats, world.rebalances, world.application.figures)

    return PreparedRun(world, ApplicationNemesis(world, plan), counts)
