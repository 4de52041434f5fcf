"""Checks that clients answer, call back, read and reconnect, each in its time.

A frozen consumer, or one whose application is slow, is excused for that time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from fencepost.coordinator.protocol.sac import ConnectionId
from fencepost.member.base.backoff import JITTER
from fencepost.member.sac.actions import SacCallback
from fencepost.member.sac.machine import SacConfig
from fencepost.member.sac.offsets import OffsetKind, OffsetSpecification
from fencepost.member.sac.states import SacMemberEvent, SacMemberState
from fencepost.simulation.judge.base import Finding, OfHosts, of_process
from fencepost.simulation.sac.clients import SacSubscriber
from fencepost.simulation.sac.connection import CREDIT
from fencepost.simulation.sac.observers import SacJudge

if TYPE_CHECKING:
    from fencepost.simulation.sac.nodes import SacNodes

_S, _E = SacMemberState, SacMemberEvent
_HOLDS: Final = frozenset({_S.ACTIVE, _S.STEPPING_DOWN})
_OF: Final = {
    SacCallback.ACTIVATED: (_S.ACTIVATING,),
    SacCallback.STEPPING_DOWN: (_S.STEPPING_DOWN,),
    SacCallback.LOST: (_S.LOST,),
}
"""States in which a callback begins."""
_CONFIG: Final = SacConfig()
_SLACK_US: Final = 2_000_000
_LATE: Final = 5_000


class JudgedConsumer:
    """One consumer, by its visible behaviour."""

    def __init__(self, subscriber: SacSubscriber, judge: SacConsumers) -> None:
        self._subscriber = subscriber
        self._judge = judge
        self.name = subscriber.name
        self.state = _S.UNSUBSCRIBED
        self.since_us = 0
        self.paused_us = 0
        """Time since then during which its process was frozen, or a finished callback ran, in microseconds.
        """
        self.callback: tuple[SacCallback, int] | None = None
        self.told: SacCallback | None = None
        """The last callback that ended."""
        self.raised = False
        self.closing = False
        self.tries = 0
        """Failed attempts to connect since a subscription was accepted."""
        self.updates: deque[tuple[int, bool]] = deque()
        """Updates that are not answered: correlation id and activity."""
        self.answered = False
        """True if it is active, and has answered the update by which it is."""
        self.next_offset: int | None = None
        self.first_due = 0
        """The first offset that it must receive, in any case, since it became active."""
        self.handed_us = 0
        """Time at which it could begin with its next message, in microseconds."""
        self.since_let_go = 0
        """Messages that were processed since it was active last: it had one in hand at most."""
        self.stored_from: int | None = None
        """The stored offset at the time at which it was told to be active."""

    def own_us(self, now_us: int) -> int:
        """Return the time for which it has been in its state, without the time of its application and its
        process."""
        running_us = 0 if self.callback is None else now_us - max(self.callback[1], self.since_us)
        return now_us - self.since_us - self.paused_us - running_us

    # -- states ---------------------------------------------------------------------------------------------

    def on_client_state(
        self, event: SacMemberEvent, source: SacMemberState, target: SacMemberState, now_us: int
    ) -> Iterator[Finding]:
        """Check that each state is left in time, and that no connection is given up without a reason."""
        if source is not self.state:
            yield "sac-prompt", f"{self.name} was {self.state}, and moves from {source}"
        took_us, passed_us = self.own_us(now_us), now_us - self.since_us
        if event is _E.DISCONNECTED:
            yield from self._gives_up(source, passed_us)
        limit_us = self._limit_us(source)
        if limit_us is not None and took_us > limit_us:
            yield "sac-prompt", f"{self.name} is {source} for {took_us / 1e6:.1f} s of its own time"
        if source is _S.BACKING_OFF and event is _E.BACKOFF_OVER:
            yield from self._backed_off(took_us, passed_us)
        lets_go = source in _HOLDS | {_S.ACTIVATING} and target in (_S.WAITING, _S.CLOSED)
        if lets_go and self.told is not SacCallback.STEPPING_DOWN:
            yield "sac-callbacks", f"{self.name} lets go, and its application was not notified"
        if source is _S.LOST and self.told is not SacCallback.LOST:
            yield "sac-callbacks", f"{self.name} was lost, and its application was not notified"
        if source is _S.ACTIVE:
            yield from self._read_all(now_us)
        if event is _E.SUBSCRIBED:
            self.tries = 0
        if event is _E.DISCONNECTED:
            self.updates.clear()
            self.tries += 1
        if target is _S.ACTIVE:
            self.next_offset, self.handed_us, self.since_let_go = None, now_us, 0
            self.first_due = self._cluster.log_end(self._subscriber.subscription.stream) + 1
        self.state, self.since_us, self.paused_us = target, now_us, 0
        self.answered = False

    @property
    def _cluster(self) -> SacNodes:
        return self._judge.world.cluster

    @property
    def _owner(self) -> str | None:
        """The owner of its connection, if it has one."""
        connection = self._subscriber.connection
        return None if connection is None else connection.owner

    def _limit_us(self, state: SacMemberState) -> int | None:
        scenario = self._judge.world.scenario
        messages_us = 4 * scenario.network.latency.longest_us + _SLACK_US
        if state in (_S.CONNECTING, _S.SUBSCRIBING):
            return _CONFIG.request_timeout_ms * 1_000 + _SLACK_US
        if state is _S.BACKING_OFF:
            return _CONFIG.backoff_max_ms * 1_000 + _SLACK_US
        if state in (_S.ACTIVATING, _S.STEPPING_DOWN, _S.LOST):
            return (
                messages_us + scenario.application.processing.longest_us + scenario.cluster.command_timeout.us
            )
        return None

    def _gives_up(self, source: SacMemberState, took_us: int) -> Iterator[Finding]:
        timed = source in (_S.CONNECTING, _S.SUBSCRIBING)
        late = timed and took_us >= _CONFIG.request_timeout_ms * 1_000 - _LATE
        failed = source is _S.ACTIVATING and self.raised
        if self._owner in self._judge.open and not failed and not late:
            yield "sac-prompt", f"{self.name} gives up a connection that it has, as {source}"

    def _backed_off(self, took_us: int, passed_us: int) -> Iterator[Finding]:
        """Judge a wait by the process's own time, and by all the time that passed while it may have been
        frozen."""
        longest_ms = min(_CONFIG.backoff_ms << min(self.tries - 1, 20), _CONFIG.backoff_max_ms)
        if passed_us < longest_ms * 1_000 * (1 - JITTER) - _LATE:
            waited = f"connects again after {passed_us / 1e6:.2f} s, at its"
            yield "sac-prompt", f"{self.name} {waited} try {self.tries}"
        elif took_us > longest_ms * 1_000 * (1 + JITTER) + _LATE:
            yield "sac-prompt", f"{self.name} waits {took_us / 1e6:.2f} s at its try {self.tries}"

    # -- callbacks ------------------------------------------------------------------------------------------

    def on_client_callback(self, kind: SacCallback, phase: str, now_us: int) -> Iterator[Finding]:
        """Check that callbacks run one at a time, and each in the state that it is for."""
        if phase == "begin":
            if self.callback is not None:
                yield "sac-callbacks", f"{self.name}: {kind} begins during {self.callback[0]}"
            if self.state not in (*_OF[kind], _S.LOST):
                yield "sac-callbacks", f"{self.name}: {kind} begins as it is {self.state}"
            self.callback = kind, now_us
            return
        if self.callback is None or self.callback[0] is not kind:
            yield "sac-callbacks", f"{self.name}: {kind} ends, and did not begin"
        else:
            self.paused_us += now_us - max(self.callback[1], self.since_us)
        if self._subscriber.heard is not kind:
            yield "sac-callbacks", f"{self.name}: {kind} ends, and its application heard nothing"
        self.callback, self.told, self.raised = None, kind, phase == "raised"

    # -- updates --------------------------------------------------------------------------------------------

    def on_client_update(self, correlation: int, active: bool, now_us: int) -> None:
        """Note that the client received an update on its activity."""
        self.updates.append((correlation, active))
        if active:
            self.stored_from = self._stored()

    def _stored(self) -> int | None:
        subscription = self._subscriber.subscription
        return self._cluster.offsets.get((subscription.stream, subscription.name))

    def on_client_answer(
        self, correlation: int, offset: OffsetSpecification, now_us: int
    ) -> Iterator[Finding]:
        """Check that each update is answered once, in order, and truthfully."""
        if not self.updates:
            yield "sac-answers", f"{self.name} answers {correlation}, and no request is open"
            return
        expected, active = self.updates.popleft()
        if correlation != expected:
            yield "sac-answers", f"{self.name} answers {correlation} in place of {expected}"
        if active != (self.state is _S.ACTIVE):
            said = "active" if active else "waiting"
            yield "sac-answers", f"{self.name} answers that it is {said} as {self.state}"
        self.answered = active
        if not active and (owner := self._owner) is not None:
            self._judge.misread.pop(owner, None)
        if active == (offset.kind is OffsetKind.NONE):
            yield "sac-answers", f"{self.name} answers {offset.kind.name}"
        elif active and self.next_offset is None:
            yield from self._starts(offset)

    def _starts(self, offset: OffsetSpecification) -> Iterator[Finding]:
        """Check that it starts after the stored offset, which other clients may have moved meanwhile."""
        low, high = self.stored_from, self._stored()
        if offset.kind is OffsetKind.OFFSET:
            self.next_offset = offset.value
            right = high is not None and (-1 if low is None else low) < offset.value
            lowest, highest = sorted((-1 if low is None else low, -1 if high is None else high))
            right = right and lowest + 1 <= offset.value <= highest + 1
        else:
            right = low is None and offset == self._subscriber.subscription.offset
        if not right:
            begins = f"{self.name} begins at {offset.kind.name} {offset.value}"
            yield "sac-records", f"{begins}, and {high} is stored"

    # -- messages -------------------------------------------------------------------------------------------

    def on_client_credit(self, chunks: int, now_us: int) -> Iterator[Finding]:
        """Check that credit is granted only while the node has the log open: it refuses other credit."""
        if chunks < 1 or not self.answered:
            yield "sac-records", f"{self.name} grants credit for {chunks} chunks as it is {self.state}"

    def on_processed(self, offset: int, now_us: int) -> Iterator[Finding]:
        """Check that messages arrive in order, without a gap, promptly, and only at active consumers."""
        if self.told is not SacCallback.ACTIVATED and not self.closing:
            yield "sac-records", f"{self.name} works on {offset} after {self.told}"
        if self.state is not _S.ACTIVE:
            self.since_let_go += 1
            if self.since_let_go > 1:
                yield "sac-records", f"{self.name} begins with {offset} as it is {self.state}"
            return
        connection = self._subscriber.connection
        if self.next_offset is not None and offset != self.next_offset:
            begins = None if connection is None else self._judge.misread.pop(connection.owner, None)
            if begins is None or offset < begins:
                yield "sac-records", f"{self.name} gets {offset} in place of {self.next_offset}"
        yield from self._in_time(offset, now_us)
        if connection is not None and connection.may_be_sent > CREDIT:
            yield "sac-records", f"{self.name} may be sent {connection.may_be_sent} chunks"
        self.next_offset, self.handed_us = offset + 1, now_us

    def _in_time(self, offset: int, now_us: int) -> Iterator[Finding]:
        written_us = self._cluster.written_us(self._subscriber.subscription.stream, offset)
        if written_us is None or self._owner not in self._judge.open:
            return
        scenario = self._judge.world.scenario
        limit_us = 2 * scenario.network.latency.longest_us + scenario.application.processing.longest_us
        late_us = now_us - max(written_us, self.handed_us)
        if late_us > limit_us + scenario.cluster.command_timeout.us + _SLACK_US:
            yield "sac-records", f"{self.name} gets {offset} {late_us / 1e6:.1f} s late"

    def _read_all(self, now_us: int) -> Iterator[Finding]:
        if self._subscriber.client.name not in self._judge.frozen:
            yield from self._in_time(self.first_due if self.next_offset is None else self.next_offset, now_us)

    # -- its process ----------------------------------------------------------------------------------------

    def thawed(self, frozen_us: int, now_us: int) -> None:
        """Do not count the time for which its process was frozen."""
        if self.callback is None:
            self.paused_us += frozen_us
        self.handed_us = now_us

    def stopped(self) -> Iterator[Finding]:
        """Check that it has ended before its process."""
        if self.state not in (_S.CLOSED, _S.FAILED):
            yield "sac-prompt", f"{self.name} is {self.state} when its process ends"

    def late(self, now_us: int) -> Iterator[Finding]:
        """Check that it is not late in its present state, and that it answers unless something keeps it from
        that."""
        if self.callback is not None:
            return
        limit_us = self._limit_us(self.state)
        took_us = self.own_us(now_us)
        if limit_us is not None and took_us > limit_us:
            yield "sac-prompt", f"{self.name} is {self.state} for {took_us / 1e6:.1f} s"
        if self.updates and self.state in (_S.WAITING, _S.ACTIVE):
            yield "sac-answers", f"{self.name} has {len(self.updates)} updates, and does nothing about them"
        if self.state is _S.ACTIVE:
            yield from self._read_all(now_us)


class SacConsumers(SacJudge):
    """Judges all consumers."""

    on_client_state = of_process(JudgedConsumer.on_client_state)
    on_client_callback = of_process(JudgedConsumer.on_client_callback)
    on_client_update = of_process(JudgedConsumer.on_client_update)
    on_client_answer = of_process(JudgedConsumer.on_client_answer)
    on_client_credit = of_process(JudgedConsumer.on_client_credit)
    on_processed = of_process(JudgedConsumer.on_processed)

    def __init__(self) -> None:
        self.processes = OfHosts(partial(JudgedConsumer, judge=self))
        """By subscriber."""
        self._started: dict[str, int] = {}
        """By client: the time since which its process runs."""
        self.frozen: dict[str, int] = {}
        """By client: the time since which its process is frozen."""
        self.open: set[str | None] = set()
        """Owners of connections whose process runs on a node."""
        self.misread: dict[str, int] = {}
        """By owner of a connection, the offset from which its node sends since it took the response to an
        earlier update for the one to the last: that response names no offset, as RabbitMQ's clients do."""

    def on_host(self, client: str, what: str, now_us: int) -> None:
        """Stop watching a process that ended; do not count the time for which it is frozen."""
        mine = [each for each in self.processes if each.client.name == client]
        if what == "start":
            self._started[client] = now_us
        elif what == "freeze":
            self.frozen[client] = now_us
        elif what == "thaw":
            frozen_us = now_us - self.frozen.pop(client, now_us)
            for subscriber in mine:
                self.processes[subscriber].thawed(frozen_us, now_us)
        elif what == "stop":
            for subscriber in mine:
                self.processes[subscriber].closing = True
        elif what in ("crash", "stopped"):
            self.frozen.pop(client, None)
            for subscriber in mine:
                consumer = self.processes.pop(subscriber)
                if what == "stopped":
                    self.report_all(consumer.stopped())

    def on_connection(self, connection: ConnectionId, owner: str, opened: bool, now_us: int) -> None:
        """A connection's process begins or ends."""
        (self.open.add if opened else self.open.discard)(owner)

    def on_log_opened(self, owner: str, offset: int, is_stale: bool, now_us: int) -> None:
        """Note from where a node sends, if that is no choice of the client."""
        if is_stale:
            self.misread[owner] = offset

    def on_end(self, now_us: int) -> None:
        """Check that no consumer is late in its present state, and that all consumers of running clients have
        started."""
        for client in self.world.clients.values():
            if client.running and not client.frozen and now_us - self._started[client.name] > _SLACK_US:
                for subscriber in client.subscribers:
                    if subscriber not in self.processes:
                        self.report("sac-prompt", f"{subscriber.name} does not start")
        for subscriber, consumer in self.processes.items():
            if subscriber.client.name not in self.frozen:
                self.report_all(consumer.late(now_us))
