"""Retries wait, and are sent to the right broker.

A member that is refused, or gets no response, does not retry at once, again and again. It does not ask for
the same metadata like that either (`retries-back-off`). A member that sent a request to a broker which is not
the coordinator looks the coordinator up before anything else. So does a member whose heartbeat got no
response, or whose connection broke while a commit was in flight (`searches-anew`).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Hashable, Iterable, Iterator
from functools import partial
from typing import Final

from fencepost.coordinator.protocol.classic import JoinGroupRequest, SyncGroupRequest
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest, LeaveGroupRequest
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import JOIN_EPOCH
from fencepost.coordinator.protocol.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from fencepost.coordinator.protocol.outcome import Outcome, Request, Response
from fencepost.member.base.transport import Disconnected, TransportError
from fencepost.member.classic.states import ClassicMemberState
from fencepost.simulation.judge.base import Finding, OfProcesses, of_process
from fencepost.simulation.kernel.observers import StepEvent

_IN_A_ROW: Final = 6
_AT_LEAST_US: Final = 250_000
"""Shortest time for so many failed attempts: waits of 100 to 800 ms, spread by a fifth, come between them.

The first retry may be sent at once, to another coordinator. So may the first one after a search that found
it.
"""
_NOT_HERE: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
_SEARCH: Final = "FindCoordinator"


class FailedAttempts:
    """One process: the times at which its attempts of each kind failed, since one of them was successful."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._failures: defaultdict[Hashable, deque[int]] = defaultdict(partial(deque, maxlen=_IN_A_ROW))
        self._asked: list[Request] = []
        """Requests without a response that were sent since it last looked for the coordinator."""
        self._misled = ""
        """The last answer or silence of a broker that got a request and is not the coordinator; empty if the
        member has looked for the coordinator since."""
        self._awaited: OffsetCommitRequest | None = None
        """The newest commit, until it moves to another state: then it may wait for it no more."""

    def takes_request(self, request: Request, now_us: int) -> Iterator[Finding]:
        """Note a request to a broker that may be the coordinator."""
        if type(request) is OffsetCommitRequest and request.producer_id >= 0:
            return
        if type(request) is LeaveGroupRequest:
            return  # the last request of a member that does not wait for a coordinator
        self._asked.append(request)
        if type(request) is OffsetCommitRequest:
            self._awaited = request
        if why := self._misled:
            self._misled = ""
            yield "searches-anew", f"{self._host} sends {type(request).__name__} to a broker that {why}"

    def on_member_state(self, event: str, source: str, target: str, now_us: int) -> None:
        """Note that a member that moves on does not wait for the response to its round any more.

        A classic member that leaves ignores its heartbeat, too.
        """
        self._awaited = None
        if target is ClassicMemberState.PREPARE_LEAVING:
            self._asked.clear()
        elif self._asked:
            in_round = JoinGroupRequest | SyncGroupRequest
            self._asked[:] = [each for each in self._asked if not isinstance(each, in_round)]

    def _answered(self, request: Request, codes: Iterable[ErrorCode], *, is_silent: bool = False) -> None:
        """Note a broker's response; to a request that is older than the last search it means nothing."""
        if request in self._asked:
            self._asked.remove(request)
            if not _NOT_HERE.isdisjoint(codes):
                self._misled = "responded that it is not the coordinator"
            elif is_silent:
                self._misled = f"did not respond to its last {type(request).__name__}"

    def takes_response(
        self, request: Request, response: Response | Exception, now_us: int
    ) -> Iterator[Finding]:
        """Note that a heartbeat, or a request of a round, was answered or failed.

        A leave is the last request of a member that may not wait for a coordinator.
        """
        code = getattr(response, "error_code", ErrorCode.NONE)
        beats = type(request) is ConsumerGroupHeartbeatRequest and request.member_epoch >= JOIN_EPOCH
        self._answered(request, (code,), is_silent=beats and isinstance(response, TransportError))
        fails = isinstance(response, Exception) or code.retriable
        return self.ended(type(request).__name__, now_us, fails=fails)

    def on_commit(
        self, request: OffsetCommitRequest, response: OffsetCommitResponse | Exception, now_us: int
    ) -> Iterator[Finding]:
        """Note that a commit was answered or failed. Producers look for the coordinator themselves."""
        if request.producer_id >= 0:
            return
        fails = True
        codes: Collection[ErrorCode] = ()
        if isinstance(response, OffsetCommitResponse):
            codes = response.errors.values()
            fails = any(codes) and all(code.retriable for code in codes)
        cut_off = isinstance(response, Disconnected) and self._awaited is request
        self._answered(request, codes if fails else (), is_silent=cut_off)
        yield from self.ended(type(request).__name__, now_us, fails=fails)

    def on_member_search(self, now_us: int) -> Iterator[Finding]:
        """Note a search. One that finds a coordinator that responds is no failure, and is forgotten then."""
        self._asked.clear()
        self._misled = ""
        return self.ended(_SEARCH, now_us, fails=True)

    def on_member_lookup(self, request: Hashable, now_us: int) -> Iterator[Finding]:
        """Note that it asks for metadata. A response stays good for a while, so it need not ask again."""
        if (took_us := self._fails(request, now_us)) is not None:
            yield (
                "retries-back-off",
                f"{self._host} has asked {_IN_A_ROW} times within {took_us // 1_000} ms for {request}",
            )

    def ended(self, kind: str, now_us: int, *, fails: bool) -> Iterator[Finding]:
        """Note the end of an attempt. After a successful one there is a coordinator, too."""
        if not fails:
            for each in {kind, _SEARCH} & self._failures.keys():
                self._failures[each].clear()
        elif (took_us := self._fails(kind, now_us)) is not None:
            yield (
                "retries-back-off",
                f"{self._host} has sent {_IN_A_ROW} {kind} in vain within {took_us // 1_000} ms",
            )

    def _fails(self, kind: Hashable, now_us: int) -> int | None:
        """Note a failed attempt. Return the duration of the last few, in µs, if they were too fast; else
        None."""
        times = self._failures[kind]
        times.append(now_us)
        took_us = now_us - times[0]
        return took_us if len(times) == _IN_A_ROW and took_us < _AT_LEAST_US else None


class Retries(OfProcesses[FailedAttempts]):
    """Checks all members of a world."""

    new = FailedAttempts
    on_commit = of_process(FailedAttempts.on_commit)
    on_member_lookup = of_process(FailedAttempts.on_member_lookup)
    on_member_search = of_process(FailedAttempts.on_member_search)
    on_member_state = of_process(FailedAttempts.on_member_state)
    takes_request = of_process(FailedAttempts.takes_request)
    takes_response = of_process(FailedAttempts.takes_response)

    def on_coordinator_step(self, host: str, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        """Note fetches of offsets: members do not report them; the coordinator has them."""
        if type(event) is OffsetFetchRequest and isinstance(outcome.reply, OffsetFetchResponse):
            name = self.world.hosts_by_member.get(event.member_id or "")
            if name is not None:
                fails = bool(outcome.reply.error_code)
                self.report_all(self.processes[name].ended(type(event).__name__, now_us, fails=fails))
