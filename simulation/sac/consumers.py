"""Checks that clients answer, call back, read and reconnect, each in its time.

A frozen consumer, or one whose application is slow, is excused for that time.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from fencepost.coordinator.protocol.sac import ConnectionId
from fencepost.member.base.backoff import JITTER
from fencepost.member.sac.actions import SacCallback
from fencepost.member.sac.machine import SacConfig
from fencepost.member.sac.offsets import OffsetKind, OffsetSpecification
from fencepost.member.sac.states import SacMemberEvent, SacMemberState
from fencepost.simulation.sac.clients import SacSubscriber
from fencepost.simulation.sac.connection import CREDIT
from fencepost.simulation.sac.observers import SacJudge

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


class _Seen:
    """One consumer as its judge knows it."""

    def __init__(self) -> None:
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


class SacConsumers(SacJudge):
    """Judges each consumer by its visible behaviour."""

    def __init__(self) -> None:
        self._seen: dict[SacSubscriber, _Seen] = {}
        self._started: dict[str, int] = {}
        """By client: the time since which its process runs."""
        self._frozen: dict[str, int] = {}
        """By client: the time since which its process is frozen."""
        self._open: set[str] = set()
        """Owners of connections whose process runs on a node."""
        self._misread: dict[str, int] = {}
        """By owner of a connection, the offset from which its node sends since it took the response to an
        earlier update for the one to the last: that response names no offset, as RabbitMQ's clients do."""

    def _of(self, subscriber: SacSubscriber) -> _Seen:
        found = self._seen.get(subscriber)
        if found is None:
            found = self._seen[subscriber] = _Seen()
        return found

    # -- processes and connections --------------------------------------------------------------------------

    def on_host(self, client: str, what: str, now_us: int) -> None:
        """Stop watching a process that ended; do not count the time for which it is frozen."""
        mine = [each for each in self._seen if each.client.name == client]
        if what == "start":
            self._started[client] = now_us
        elif what == "freeze":
            self._frozen[client] = now_us
        elif what == "thaw":
            frozen_us = now_us - self._frozen.pop(client, now_us)
            for subscriber in mine:
                seen = self._seen[subscriber]
                if seen.callback is None:
                    seen.paused_us += frozen_us
                seen.handed_us = now_us
        elif what == "stop":
            for subscriber in mine:
                self._seen[subscriber].closing = True
        elif what in ("crash", "stopped"):
            self._frozen.pop(client, None)
            for subscriber in mine:
                seen = self._seen.pop(subscriber)
                if what == "stopped" and seen.state not in (_S.CLOSED, _S.FAILED):
                    self.report("sac-prompt", f"{subscriber.name} is {seen.state} when its process ends")

    def on_connection(self, connection: ConnectionId, owner: str, opened: bool, now_us: int) -> None:
        """A connection's process begins or ends."""
        if opened:
            self._open.add(owner)
        else:
            self._open.discard(owner)

    # -- states ---------------------------------------------------------------------------------------------

    def on_client_state(
        self,
        subscriber: SacSubscriber,
        event: SacMemberEvent,
        source: SacMemberState,
        target: SacMemberState,
        now_us: int,
    ) -> None:
        """Check that each state is left in time, and that no connection is given up without a reason."""
        seen = self._of(subscriber)
        if source is not seen.state:
            self.report("sac-prompt", f"{subscriber.name} was {seen.state}, and moves from {source}")
        took_us = seen.own_us(now_us)
        if event is _E.DISCONNECTED:
            self._gives_up(subscriber, seen, source, now_us - seen.since_us)
        limit_us = self._limit_us(source, subscriber)
        if limit_us is not None and took_us > limit_us:
            self.report(
                "sac-prompt", f"{subscriber.name} is {source} for {took_us / 1e6:.1f} s of its own time"
            )
        if source is _S.BACKING_OFF and event is _E.BACKOFF_OVER:
            self._backed_off(subscriber, seen, took_us, now_us - seen.since_us)
        lets_go = source in _HOLDS | {_S.ACTIVATING} and target in (_S.WAITING, _S.CLOSED)
        if lets_go and seen.told is not SacCallback.STEPPING_DOWN:
            self.report("sac-callbacks", f"{subscriber.name} lets go, and its application was not notified")
        if source is _S.LOST and seen.told is not SacCallback.LOST:
            self.report("sac-callbacks", f"{subscriber.name} was lost, and its application was not notified")
        if source is _S.ACTIVE:
            self._read_all(subscriber, seen, now_us)
        if event is _E.SUBSCRIBED:
            seen.tries = 0
        if event is _E.DISCONNECTED:
            seen.updates.clear()
            seen.tries += 1
        if target is _S.ACTIVE:
            seen.next_offset, seen.handed_us, seen.since_let_go = None, now_us, 0
            seen.first_due = self.world.cluster.log_end(subscriber.subscription.stream) + 1
        seen.state, seen.since_us, seen.paused_us = target, now_us, 0
        seen.answered = False

    def _limit_us(self, state: SacMemberState, subscriber: SacSubscriber) -> int | None:
        scenario = self.world.scenario
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

    def _gives_up(self, subscriber: SacSubscriber, seen: _Seen, source: SacMemberState, took_us: int) -> None:
        connection = subscriber.connection
        there = connection is not None and connection.owner in self._open
        timed = source in (_S.CONNECTING, _S.SUBSCRIBING)
        failed = source is _S.ACTIVATING and seen.raised
        if there and not failed and not (timed and took_us >= _CONFIG.request_timeout_ms * 1_000 - _LATE):
            self.report("sac-prompt", f"{subscriber.name} gives up a connection that it has, as {source}")

    def _backed_off(self, subscriber: SacSubscriber, seen: _Seen, took_us: int, passed_us: int) -> None:
        """Judge a wait by the process's own time, and by all the time that passed while it may have been
        frozen."""
        longest_ms = min(_CONFIG.backoff_ms << min(seen.tries - 1, 20), _CONFIG.backoff_max_ms)
        if passed_us < longest_ms * 1_000 * (1 - JITTER) - _LATE:
            self.report(
                "sac-prompt",
                f"{subscriber.name} connects again after {passed_us / 1e6:.2f} s, at its try {seen.tries}",
            )
        elif took_us > longest_ms * 1_000 * (1 + JITTER) + _LATE:
            self.report(
                "sac-prompt", f"{subscriber.name} waits {took_us / 1e6:.2f} s at its try {seen.tries}"
            )

    # -- callbacks ------------------------------------------------------------------------------------------

    def on_client_callback(
        self, subscriber: SacSubscriber, kind: SacCallback, phase: str, now_us: int
    ) -> None:
        """Check that callbacks run one at a time, and each in the state that it is for."""
        seen = self._of(subscriber)
        if phase == "begin":
            if seen.callback is not None:
                self.report("sac-callbacks", f"{subscriber.name}: {kind} begins during {seen.callback[0]}")
            if seen.state not in (*_OF[kind], _S.LOST):
                self.report("sac-callbacks", f"{subscriber.name}: {kind} begins as it is {seen.state}")
            seen.callback = kind, now_us
            return
        if seen.callback is None or seen.callback[0] is not kind:
            self.report("sac-callbacks", f"{subscriber.name}: {kind} ends, and did not begin")
        else:
            seen.paused_us += now_us - max(seen.callback[1], seen.since_us)
        if subscriber.heard is not kind:
            self.report("sac-callbacks", f"{subscriber.name}: {kind} ends, and its application heard nothing")
        seen.callback, seen.told, seen.raised = None, kind, phase == "raised"

    # -- updates --------------------------------------------------------------------------------------------

    def on_client_update(
        self, subscriber: SacSubscriber, correlation: int, active: bool, now_us: int
    ) -> None:
        """Note that the client received an update on its activity."""
        seen = self._of(subscriber)
        seen.updates.append((correlation, active))
        if active:
            seen.stored_from = self._stored(subscriber)

    def _stored(self, subscriber: SacSubscriber) -> int | None:
        subscription = subscriber.subscription
        return self.world.cluster.offsets.get((subscription.stream, subscription.name))

    def on_client_answer(
        self, subscriber: SacSubscriber, correlation: int, offset: OffsetSpecification, now_us: int
    ) -> None:
        """Check that each update is answered once, in order, and truthfully."""
        seen = self._of(subscriber)
        if not seen.updates:
            self.report("sac-answers", f"{subscriber.name} answers {correlation}, and no request is open")
            return
        expected, active = seen.updates.popleft()
        if correlation != expected:
            self.report("sac-answers", f"{subscriber.name} answers {correlation} in place of {expected}")
        if active != (seen.state is _S.ACTIVE):
            self.report(
                "sac-answers",
                f"{subscriber.name} answers that it is {'active' if active else 'waiting'} as {seen.state}",
            )
        seen.answered = active
        if not active and subscriber.connection is not None:
            self._misread.pop(subscriber.connection.owner, None)
        if active == (offset.kind is OffsetKind.NONE):
            self.report("sac-answers", f"{subscriber.name} answers {offset.kind.name}")
        elif active and seen.next_offset is None:
            self._starts(subscriber, seen, offset)

    def _starts(self, subscriber: SacSubscriber, seen: _Seen, offset: OffsetSpecification) -> None:
        """Check that it starts after the stored offset, which other clients may have moved meanwhile."""
        low, high = seen.stored_from, self._stored(subscriber)
        if offset.kind is OffsetKind.OFFSET:
            seen.next_offset = offset.value
            right = high is not None and (-1 if low is None else low) < offset.value
            lowest, highest = sorted((-1 if low is None else low, -1 if high is None else high))
            right = right and lowest + 1 <= offset.value <= highest + 1
        else:
            right = low is None and offset == subscriber.subscription.offset
        if not right:
            self.report(
                "sac-records",
                f"{subscriber.name} begins at {offset.kind.name} {offset.value}, and {high} is stored",
            )

    def _unanswered(self, subscriber: SacSubscriber, seen: _Seen) -> None:
        """Report an unanswered update if nothing keeps the consumer from answering."""
        if seen.updates and seen.state in (_S.WAITING, _S.ACTIVE) and seen.callback is None:
            self.report(
                "sac-answers",
                f"{subscriber.name} has {len(seen.updates)} updates, and does nothing about them",
            )

    # -- messages -------------------------------------------------------------------------------------------

    def on_log_opened(self, owner: str, offset: int, is_stale: bool, now_us: int) -> None:
        """Note from where a node sends, if that is no choice of the client."""
        if is_stale:
            self._misread[owner] = offset

    def on_client_credit(self, subscriber: SacSubscriber, chunks: int, now_us: int) -> None:
        """Check that credit is granted only while the node has the log open: it refuses other credit."""
        seen = self._of(subscriber)
        if chunks < 1 or not seen.answered:
            self.report(
                "sac-records", f"{subscriber.name} grants credit for {chunks} chunks as it is {seen.state}"
            )

    def on_processed(self, subscriber: SacSubscriber, offset: int, now_us: int) -> None:
        """Check that messages arrive in order, without a gap, promptly, and only at active consumers."""
        seen = self._of(subscriber)
        if seen.told is not SacCallback.ACTIVATED and not seen.closing:
            self.report("sac-records", f"{subscriber.name} works on {offset} after {seen.told}")
        if seen.state is not _S.ACTIVE:
            seen.since_let_go += 1
            if seen.since_let_go > 1:
                self.report("sac-records", f"{subscriber.name} begins with {offset} as it is {seen.state}")
            return
        connection = subscriber.connection
        if seen.next_offset is not None and offset != seen.next_offset:
            begins = None if connection is None else self._misread.pop(connection.owner, None)
            if begins is None or offset < begins:
                what = f"gets {offset} in place of {seen.next_offset}"
                self.report("sac-records", f"{subscriber.name} {what}")
        self._in_time(subscriber, seen, offset, now_us)
        if connection is not None and connection.may_be_sent > CREDIT:
            self.report("sac-records", f"{subscriber.name} may be sent {connection.may_be_sent} chunks")
        seen.next_offset, seen.handed_us = offset + 1, now_us

    def _in_time(self, subscriber: SacSubscriber, seen: _Seen, offset: int, now_us: int) -> None:
        written_us = self.world.cluster.written_us(subscriber.subscription.stream, offset)
        connection = subscriber.connection
        if written_us is None or connection is None or connection.owner not in self._open:
            return
        late_us = now_us - max(written_us, seen.handed_us)
        if late_us > self._read_us():
            self.report("sac-records", f"{subscriber.name} gets {offset} {late_us / 1e6:.1f} s late")

    def _read_us(self) -> int:
        scenario = self.world.scenario
        busy_us = scenario.cluster.command_timeout.us
        return (
            2 * scenario.network.latency.longest_us
            + scenario.application.processing.longest_us
            + busy_us
            + _SLACK_US
        )

    def _read_all(self, subscriber: SacSubscriber, seen: _Seen, now_us: int) -> None:
        if subscriber.client.name not in self._frozen:
            due = seen.first_due if seen.next_offset is None else seen.next_offset
            self._in_time(subscriber, seen, due, now_us)

    # -- the end --------------------------------------------------------------------------------------------

    def on_end(self, now_us: int) -> None:
        """Check that no consumer is late in its present state, and that all consumers of running clients have
        started."""
        for client in self.world.clients.values():
            if client.running and not client.frozen and now_us - self._started[client.name] > _SLACK_US:
                for subscriber in client.subscribers:
                    if subscriber not in self._seen:
                        self.report("sac-prompt", f"{subscriber.name} does not start")
        for subscriber, seen in self._seen.items():
            if subscriber.client.name in self._frozen:
                continue
            if seen.callback is not None:
                continue
            limit_us = self._limit_us(seen.state, subscriber)
            took_us = seen.own_us(now_us)
            if limit_us is not None and took_us > limit_us:
                self.report("sac-prompt", f"{subscriber.name} is {seen.state} for {took_us / 1e6:.1f} s")
            self._unanswered(subscriber, seen)
            if seen.state is _S.ACTIVE:
                self._read_all(subscriber, seen, now_us)
