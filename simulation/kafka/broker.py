"""A broker's host: answers for the cluster, and runs the group's coordinator while it is in charge."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatResponse
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.outcome import (
    NOTHING,
    CreateInternalTopics,
    DeadlineReached,
    Effect,
    Event,
    Outcome,
    ParkedResponse,
    ResolveRegularExpressions,
    TopicsChanged,
)
from fencepost.coordinator.runtime import CoordinatorRuntime
from fencepost.simulation.kafka.requests import GROUP_REQUESTS, refuse
from fencepost.simulation.kafka.waiting import MAY_WAIT, WaitingCalls
from fencepost.simulation.kernel.host import Host
from fencepost.simulation.kernel.network import Call
from fencepost.simulation.kernel.rng import Samples

if TYPE_CHECKING:
    from fencepost.simulation.kafka.cluster import SimulatedCluster


class BrokerStatus(enum.StrEnum):
    """What a broker's host does for the group."""

    STANDBY = "standby"
    LOADING = "loading"
    ACTIVE = "active"
    DOWN = "down"


# Names of their own: in Python 3.11 an attribute of an enum class costs as much as a call.
STANDBY, LOADING, ACTIVE, DOWN = BrokerStatus
NONE = ErrorCode.NONE


class BrokerHost(Host):
    """One broker. `coordinator` and its `runtime` are there while it runs the group's coordinator."""

    def __init__(self, name: str, cluster: SimulatedCluster) -> None:
        super().__init__(name, cluster.loop)
        self.up = True
        """Whether the process lives: unless its status is DOWN."""
        self.status = STANDBY
        self.coordinator: GroupCoordinator | None = None
        self.runtime: CoordinatorRuntime | None = None
        self._cluster = cluster
        self._term = 0
        """Grows whenever this host stops or starts being the coordinator: what is due of before is void."""
        self._armed_ms: int | None = None
        self._unanswered = WaitingCalls()
        self._steady = cluster.hooks["on_steady_step"]
        self._changed = cluster.hooks["on_coordinator_step"]
        self._replication: Samples = cluster.streams.samples(
            f"replication/{name}", cluster.spec.replication.quantiles
        )

    @property
    def running(self) -> bool:
        """Whether it lives and is not paused."""
        return self.up and not self.frozen

    # -- requests ---------------------------------------------------------------------------------------

    def receive(self, call: Call) -> None:
        """Answer one request."""
        if self.frozen:
            self.run(self.receive, call)
            call.connection.network.wait(call)
            return
        request = call.request
        now = self.loop.now_us
        if not isinstance(request, GROUP_REQUESTS):
            call.answer(self._cluster.answer(request), now)
        elif self.status is ACTIVE:
            if type(request) in MAY_WAIT:
                request = self._cluster.tokens.stamp(request)
            outcome = self.step(request)  # type: ignore[arg-type]  # GROUP_REQUESTS are events
            if outcome.reply is None:
                self._unanswered.add(request.token, call)  # type: ignore[attr-defined]  # of MAY_WAIT
                return
            call.answer(outcome.reply, now + self._replication.draw() if outcome.records else now)
        elif self.status is LOADING:
            call.answer(refuse(request, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), now)
        else:
            call.answer(refuse(request, ErrorCode.NOT_COORDINATOR), now)

    def step(self, event: Event) -> Outcome:
        """One step of the coordinator, and all that follows from it but the reply."""
        assert self.runtime is not None
        now = self.loop.now_us
        outcome = self.runtime.process(event, now // 1_000)
        reply = outcome.reply
        if (
            not outcome.records
            and not outcome.effects
            and type(reply) is ConsumerGroupHeartbeatResponse
            and reply.error_code is NONE
        ):
            for hook in self._steady:
                hook(self.name, event, outcome, now)
            return outcome
        if outcome is NOTHING:
            return outcome
        for hook in self._changed:
            hook(self.name, event, outcome, now)
        if outcome.effects:
            self._carry_out(outcome, now)
        self._arm()
        return outcome

    def _carry_out(self, outcome: Outcome, now: int) -> None:
        for effect in outcome.effects:
            if isinstance(effect, ResolveRegularExpressions):
                self._resolve(effect)
            elif isinstance(effect, CreateInternalTopics):
                self._cluster.create_internal_topics(effect)
        answers = [effect for effect in outcome.effects if isinstance(effect, ParkedResponse)]
        if answers:
            self._answer(answers, now + self._replication.draw() if outcome.records else now)

    def _answer(self, answers: Iterable[Effect], ready_us: int) -> None:
        """Answer requests that waited."""
        for answer in answers:
            if isinstance(answer, ParkedResponse):
                self._unanswered.answer(answer, ready_us)

    # -- timers and effects -------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Make sure that something wakes the coordinator at its next deadline."""
        assert self.coordinator is not None
        due = self.coordinator.next_deadline()
        if due is not None and (self._armed_ms is None or due < self._armed_ms):
            self._armed_ms = due
            self.loop.schedule(max(due * 1_000, self.loop.now_us), self._run_due, (self._term, due))

    def _run_due(self, armed: tuple[int, int]) -> None:
        if self.frozen:
            self.run(self._run_due, armed)
            return
        if armed != (self._term, self._armed_ms) or self.status is not ACTIVE:
            return
        assert self.coordinator is not None
        self._armed_ms = None
        now_ms = self.loop.now_us // 1_000
        while (due := self.coordinator.next_deadline()) is not None and due <= now_ms:
            self.step(DeadlineReached())
        self._arm()

    def _resolve(self, effect: ResolveRegularExpressions) -> None:
        self.loop.schedule(
            self.loop.now_us + self._cluster.regex.draw(), self._resolved, (self._term, effect)
        )

    def _resolved(self, due: tuple[int, ResolveRegularExpressions]) -> None:
        if self.frozen:
            self.run(self._resolved, due)
            return
        term, effect = due
        if term == self._term and self.status is ACTIVE:
            self.step(self._cluster.resolve(effect))

    # -- leadership ---------------------------------------------------------------------------------------

    def load(self) -> None:
        """Become the group's coordinator: refuse requests until the journal is read."""
        self._term += 1
        self.status = LOADING
        self._cluster.tell("on_coordinator_state", self.name, "load")
        self.loop.schedule(self.loop.now_us + self._cluster.load.draw(), self._loaded, self._term)

    def _loaded(self, term: int) -> None:
        if self.frozen:
            self.run(self._loaded, term)
            return
        if term != self._term or self.status is not LOADING:
            return
        self.coordinator = GroupCoordinator(self._cluster.config)
        self.runtime = CoordinatorRuntime(self.coordinator, self._cluster.journal)
        self.coordinator.replay(self._cluster.journal, self.loop.now_us // 1_000)
        self._armed_ms = None
        self.status = ACTIVE
        self._cluster.tell("on_coordinator_state", self.name, "active")
        self.step(TopicsChanged(image=self._cluster.topics))

    def resign(self) -> None:
        """Stop being the coordinator, in good order: the journal has everything."""
        if self.status in (LOADING, ACTIVE):
            if self.coordinator is not None:
                self.run(self._turn_away, self.coordinator.unload())
            self._forget(STANDBY)
            self._cluster.tell("on_coordinator_state", self.name, "resign")

    def _turn_away(self, answers: tuple[Effect, ...]) -> None:
        self._answer(answers, self.loop.now_us)

    def crash(self) -> None:
        """Die. All connections break; replies that waited for replication are never sent."""
        self._forget(DOWN)
        self._unanswered.clear()
        self.up = False
        self.end()
        self._cluster.tell("on_coordinator_state", self.name, "crash")

    def restart(self) -> None:
        """Come back, in charge of nothing."""
        self.up = True
        self.status = STANDBY
        self._cluster.tell("on_coordinator_state", self.name, "restart")

    # -- what befalls it ----------------------------------------------------------------------------------

    def kill(self) -> None:
        """End the process without a word; another broker follows if it was in charge."""
        self._cluster.crash(self)

    def revive(self) -> None:
        """Start it again."""
        self._cluster.restart(self)

    def pause(self) -> None:
        """Let it stand still: connections stay open and nothing is answered."""
        self._cluster.pause(self)

    def resume(self) -> None:
        """Let it go on, if it is not dead by now."""
        self._cluster.resume(self)

    def _forget(self, status: BrokerStatus) -> None:
        self._term += 1
        self.coordinator = self.runtime = None
        self._armed_ms = None
        self.status = status

    def topics_changed(self) -> None:
        """Hear of the cluster's topics."""
        if self.frozen:
            self.run(lambda _: self.topics_changed(), None)
            return
        if self.status is ACTIVE:
            self.step(TopicsChanged(image=self._cluster.topics))
