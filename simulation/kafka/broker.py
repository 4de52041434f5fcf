"""A broker's host: it responds for the cluster, and runs the group's coordinator while it is in charge."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.host import CoordinatorHost, HostHooks
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.outcome import (
    NOTHING,
    CreateInternalTopics,
    Effect,
    Event,
    Outcome,
    Response,
    TopicsChanged,
)
from fencepost.coordinator.protocol.slices import Sliced, at_once
from fencepost.simulation.kafka.requests import (
    GROUP_REQUESTS,
    MAY_WAIT,
    TRANSACTION_REQUESTS,
    TxnOffsetCommit,
    refuse,
)
from fencepost.simulation.kernel.host import Host, HostClock, HostTimer
from fencepost.simulation.kernel.network import Call
from fencepost.simulation.kernel.rng import Samples

if TYPE_CHECKING:
    from fencepost.simulation.kafka.cluster import SimulatedCluster


class BrokerStatus(enum.StrEnum):
    """The status of a broker's host with regard to the group."""

    STANDBY = "standby"
    LOADING = "loading"
    ACTIVE = "active"
    DOWN = "down"


# Names of their own: in Python 3.11 an attribute of an enum class costs as much as a call.
STANDBY, LOADING, ACTIVE, DOWN = BrokerStatus


class BrokerHost(Host, HostHooks):
    """One broker. `coordinator` and `coordinator_host` are set while it runs the group's coordinator."""

    def __init__(self, name: str, cluster: SimulatedCluster) -> None:
        super().__init__(name, cluster.loop)
        self.up = True
        """True while the process lives, that is, unless its status is DOWN."""
        self.status = STANDBY
        self.coordinator: GroupCoordinator | None = None
        self.coordinator_host: CoordinatorHost[GroupCoordinator] | None = None
        """The host of the coordinator, on this broker's clock; `serve` uses the same class."""
        self._cluster = cluster
        self._term = 0
        """Grows whenever this host starts or stops being the coordinator; work that was due before is void
        then."""
        self._steady = cluster.hooks["on_steady_step"]
        self._changed = cluster.hooks["on_coordinator_step"]
        self._replication: Samples = cluster.draws.samples(
            f"replication/{name}", cluster.spec.replication.quantiles
        )

    @property
    def running(self) -> bool:
        """True if it lives and is not paused."""
        return self.up and not self.frozen

    # -- requests ---------------------------------------------------------------------------------------

    def receive(self, call: Call) -> None:
        """Process one request."""
        if self.frozen:
            self.run(self.receive, call)
            call.connection.network.wait(call)
            return
        request = call.request
        now = self.loop.now_us
        if type(request) is ConsumerGroupHeartbeatRequest and self.status is ACTIVE:  # most of the requests
            assert self.coordinator_host is not None
            outcome = self.coordinator_host.process(request)
            call.answer(outcome.reply, now + self._replication.draw() if outcome.records else now)
        elif type(request) not in GROUP_REQUESTS:
            self._receive_other(call)
        elif self.status is ACTIVE:
            if type(request) in MAY_WAIT:
                request = self._cluster.tokens.stamp(request)
            outcome = self.step(request)  # type: ignore[arg-type]  # GROUP_REQUESTS are events
            if outcome.reply is None:
                assert self.coordinator_host is not None
                self.coordinator_host.park(request.token, call)  # type: ignore[attr-defined]  # of MAY_WAIT
                call.connection.network.wait(call)
                return
            call.answer(outcome.reply, now + self._replication.draw() if outcome.records else now)
        elif self.status is LOADING:
            call.answer(refuse(request, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), now)
        else:
            call.answer(refuse(request, ErrorCode.NOT_COORDINATOR), now)

    def _receive_other(self, call: Call) -> None:
        """Respond to requests for the whole cluster, or for a coordinator of transactions."""
        request, transactions = call.request, self._cluster.transactions
        if transactions is not None and isinstance(request, TRANSACTION_REQUESTS):
            transactions.receive(self, call)
        elif transactions is not None and isinstance(request, TxnOffsetCommit):
            code = transactions.check(request) if self.status is ACTIVE else ErrorCode.NONE
            if code is not ErrorCode.NONE:
                call.answer(refuse(request.offsets, code), self.loop.now_us)
            else:
                call.request = request.offsets
                self.receive(call)
        else:
            call.answer(self._cluster.answer(request), self.loop.now_us)

    def step(self, event: Event) -> Outcome:
        """Take one step of the coordinator, with all its consequences except the response."""
        assert self.coordinator_host is not None
        outcome: Outcome = self.coordinator_host.process(event)
        return outcome

    # -- hooks of the coordinator's host ------------------------------------------------------------------

    def steady(self, event: Event, outcome: Outcome, now_ms: int) -> None:
        """Notify observers of the step."""
        now_us = self.loop.now_us
        for hook in self._steady:
            hook(self.name, event, outcome, now_us)

    def stepped(self, event: Event, outcome: Outcome, now_ms: int) -> None:
        """Notify observers of the step."""
        if outcome is not NOTHING:
            now_us = self.loop.now_us
            for hook in self._changed:
                hook(self.name, event, outcome, now_us)

    def deliver(self, responses: Sequence[tuple[Call, Response]], outcome: Outcome) -> None:
        """Respond to requests that waited; a frozen broker does so when it thaws."""
        now_us = self.loop.now_us
        ready_us = now_us + self._replication.draw() if outcome.records else now_us
        self.run(_answer, (responses, ready_us))

    def later(self, work: Sliced[None]) -> None:
        """Resolve regular expressions after the time that this takes."""
        HostTimer(self, self.loop.now_us + self._cluster.regex.draw(), at_once, (work,))

    def carry_out(self, effect: Effect) -> None:
        """Create the topics that a Streams group waits for."""
        if isinstance(effect, CreateInternalTopics):
            self._cluster.create_internal_topics(effect)

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
        self.coordinator.replay(self._cluster.journal, self.loop.now_us // 1_000)
        self.coordinator_host = CoordinatorHost(
            self.coordinator, self._cluster.journal, HostClock(self), self
        )
        self.status = ACTIVE
        self._cluster.tell("on_coordinator_state", self.name, "active")
        self.step(TopicsChanged(image=self._cluster.topics))

    def resign(self) -> None:
        """Stop being the coordinator cleanly: the journal has everything."""
        if self.status in (LOADING, ACTIVE):
            if self.coordinator_host is not None:
                self.coordinator_host.close()
            self._forget(STANDBY)
            self._cluster.tell("on_coordinator_state", self.name, "resign")

    def crash(self) -> None:
        """Crash. All connections break; responses that waited for replication are never sent."""
        if self.coordinator_host is not None:
            self.coordinator_host.abandon()
        self._forget(DOWN)
        self.up = False
        self.end()
        self._cluster.tell("on_coordinator_state", self.name, "crash")

    def restart(self) -> None:
        """Start again, in charge of nothing."""
        self.up = True
        self.status = STANDBY
        self._cluster.tell("on_coordinator_state", self.name, "restart")

    # -- disturbances ------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Kill the process; another broker takes over if it was in charge."""
        self._cluster.crash(self)

    def revive(self) -> None:
        """Start it again."""
        self._cluster.restart(self)

    def pause(self) -> None:
        """Freeze it: connections stay open, and it sends no responses."""
        self._cluster.pause(self)

    def resume(self) -> None:
        """Let it continue, unless it has crashed since."""
        self._cluster.resume(self)

    def _forget(self, status: BrokerStatus) -> None:
        self._term += 1
        self.coordinator = self.coordinator_host = None
        self.status = status

    def topics_changed(self) -> None:
        """Notify the coordinator of changed topics."""
        if self.frozen:
            self.run(lambda _: self.topics_changed(), None)
            return
        if self.status is ACTIVE:
            self.step(TopicsChanged(image=self._cluster.topics))


def _answer(ready: tuple[Sequence[tuple[Call, Response]], int]) -> None:
    responses, ready_us = ready
    for call, response in responses:
        call.answer(response, ready_us)
