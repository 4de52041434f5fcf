"""The end of a membership.

A member that leaves notifies its coordinator, one that was fenced comes back, and no member gives up without
need.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from fencepost.coordinator.protocol import consumer
from fencepost.coordinator.protocol.classic import JoinGroupRequest, JoinGroupResponse
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import JOIN_EPOCH, LEAVE_EPOCH, TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest
from fencepost.coordinator.protocol.outcome import Request, Response
from fencepost.member.classic.states import ClassicMemberState
from fencepost.member.consumer.states import FATAL, FENCED, ConsumerMemberEvent, ConsumerMemberState
from fencepost.simulation.judge.base import MENDED, OF_LOG, Finding, OfProcesses, of_process
from fencepost.simulation.judge.consumer_model import NONE
from fencepost.simulation.judge.members import CLOSE_TIMEOUT_US
from fencepost.simulation.judge.polls import ACTIVE_STATES, POLL_TIMED_OUT
from fencepost.simulation.judge.requests import AFTER_FAILURE_US, AT_ONCE_US
from fencepost.simulation.kernel.observers import MembersWorldView

_LEAVES: Final = (ConsumerMemberEvent.CLOSE, ConsumerMemberEvent.UNSUBSCRIBE, POLL_TIMED_OUT)
_JOINS: Final = (ConsumerMemberState.JOINING, ClassicMemberState.UNJOINED)
"""States in which a member begins to join."""
_NOT_NOW: Final = OF_LOG | {ErrorCode.REQUEST_TIMED_OUT}
"""Responses after which the group still has its member."""
_NO_MEMBER: Final = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.GROUP_ID_NOT_FOUND,
    }
)
_RAISED: Final = frozenset({ErrorCode.TOPIC_AUTHORIZATION_FAILED})
"""Responses that a member raises to its application, and tries again."""


class MembershipEnd:
    """One process: its membership as far as it knows, and its duty to leave."""

    def __init__(self, host: str, world: MembersWorldView) -> None:
        self._host = host
        self._world = world
        self._is_member = False
        self._owes = False
        """It left, and the coordinator has not received the leave yet."""
        self._event = ""
        """The event with which it left."""
        self._since_us = 0
        self._searched = False
        """True if it has looked for the coordinator since."""
        self._closing_us: int | None = None
        """The time of its close; None if it is not closed, or its process stood still since."""
        self._in_poll = False
        self._failed_us: int | None = None
        """Time at which the last leave failed, in µs, if nothing was tried since."""
        self._in_flight: Request | None = None
        """The leave that is in flight."""
        self._fenced_us: int | None = None
        """Time since which it is fenced, and has not gone on."""
        self._calls_back = False
        self._called_back_us = 0
        """Time at which its last callback ended, in µs."""
        self._stood_still = False
        self._for_good = False
        """True if its process is not to come back."""
        self._last_code: ErrorCode | None = None
        """The last error code of the coordinator; None if it did not respond, or no request was sent."""

    @property
    def _keeps_place(self) -> bool:
        """True for a static member. In a classic group it sends nothing when it leaves: it keeps its
        place."""
        return self._world.members[self._host].instance_id is not None

    def on_member_state(self, event: str, source: str, target: str, now_us: int) -> Iterator[Finding]:
        """Note that the member machine moved: the state decides if there is a leave to send."""
        yield from self.lingers(now_us)
        self._fenced_us = None
        if target in _JOINS and self._closing_us is not None and now_us - self._closing_us > AT_ONCE_US:
            after_ms = (now_us - self._closing_us) // 1_000
            yield "leaves-told", f"{self._host} joins again {after_ms} ms after it was closed"
        if target == FATAL and self._last_code in MENDED:
            yield "gives-up-rightly", f"{self._host} gave up in {source} after {self._last_code.name}"
        if target == FENCED:
            self._fenced_us, self._stood_still = now_us, False
            self._is_member = self._owes = False
            self._failed_us = None
        elif event in _LEAVES and source in ACTIVE_STATES:
            stays = isinstance(target, ClassicMemberState) and self._keeps_place
            self._owes = self._is_member and not stays
            self._event, self._since_us = event, now_us
            self._searched = self._last_code in {None} | OF_LOG  # it may know no coordinator
            self._is_member = False

    def on_callback(self, kind: str, phase: str, partitions: Iterable[TopicPartition], now_us: int) -> None:
        """Note that a callback began or ended."""
        self._calls_back = phase == "begin"
        self._called_back_us = now_us

    def on_poll(self, phase: str, now_us: int) -> None:
        """Note that the application begins to poll, or has polled: only one that polls closes at once."""
        self._in_poll = phase == "begin"

    def on_member_host(self, what: str, now_us: int) -> Iterator[Finding]:
        """Note that the process is to end, or stands still. Check that one that has ended has left."""
        if what == "stop":
            self._for_good = self._for_good or not self._world.members[self._host].wanted
            if self._in_poll:
                self._closing_us = now_us
        elif what in ("freeze", "thaw"):
            self._closing_us = None
            self._stood_still = self._searched = True
            self._failed_us = None
        elif what == "stopped":
            yield from self.lingers(now_us)
            timeout_us = self._world.scenario.network.request_timeout.us
            after_us = now_us - self._since_us
            owes = self._in_flight is not None or self._owes
            if owes and after_us < min(CLOSE_TIMEOUT_US, timeout_us * 49 // 50):
                knows = "does not know" if self._in_flight is None else "has not responded"
                yield (
                    "leaves-told",
                    f"{self._host} stopped {after_us // 1_000} ms after {self._event}, and its coordinator"
                    f" {knows}",
                )

    def on_member_search(self, now_us: int) -> None:
        """It cannot send to its coordinator yet, and a coordinator may be refused to it."""
        self._searched = True
        self._failed_us = self._last_code = None

    def lingers(self, now_us: int) -> Iterator[Finding]:
        """Yield a finding if it is fenced and ought to have gone on."""
        if self._fenced_us is None or self._calls_back or self._stood_still:
            return
        since_us = max(self._fenced_us, self._called_back_us)
        if now_us - since_us > AT_ONCE_US:
            yield (
                "fenced-returns",
                f"{self._host} was fenced, has given everything up, and does not join again for"
                f" {(now_us - since_us) // 1_000} ms",
            )

    @property
    def was_refused(self) -> bool:
        """True if the coordinator's last response was an error that nothing mends."""
        return self._last_code is not None and self._last_code not in MENDED | _RAISED

    def takes_request(self, request: Request, now_us: int) -> Iterator[Finding]:
        """A request is sent by which a member may join or leave."""
        if type(request) is OffsetCommitRequest:
            return
        self._for_good = self._for_good or not self._world.members[self._host].wanted
        beats = type(request) is consumer.ConsumerGroupHeartbeatRequest and request.member_epoch > JOIN_EPOCH
        if beats and not self.was_refused:
            return
        if isinstance(request, consumer.LeaveGroupRequest) or (
            isinstance(request, consumer.ConsumerGroupHeartbeatRequest) and request.member_epoch < JOIN_EPOCH
        ):
            for_good = isinstance(request, consumer.LeaveGroupRequest) or request.member_epoch == LEAVE_EPOCH
            if for_good and self._keeps_place and not self._for_good:
                yield "leaves-told", f"{self._host} is static, and leaves its group for good to come back"
            self._owes, self._failed_us, self._in_flight = False, None, request
        elif self.was_refused:
            assert self._last_code is not None
            yield "gives-up-rightly", f"{self._host} goes on after {self._last_code.name}"
        elif isinstance(request, JoinGroupRequest) or (
            isinstance(request, consumer.ConsumerGroupHeartbeatRequest) and request.member_epoch == JOIN_EPOCH
        ):
            if self._owes and not self._searched:
                yield "leaves-told", f"{self._host} joins again, and never left after {self._event}"
            elif self._failed_us is not None and now_us - self._failed_us > AFTER_FAILURE_US:
                yield "leaves-told", f"{self._host} joins again, and its leave failed and was not sent again"
            self._owes, self._failed_us, self._in_flight = False, None, None

    def takes_response(self, request: Request, response: Response | Exception, now_us: int) -> None:
        """Note that a request was answered or failed."""
        if (
            type(response) is consumer.ConsumerGroupHeartbeatResponse
            and response.error_code is NONE
            and response.member_epoch > 0
            and request is not self._in_flight
        ):
            self._last_code, self._is_member = NONE, True
            return
        code = ErrorCode.NONE if isinstance(response, Exception) else getattr(response, "error_code", 0)
        self._last_code = None if isinstance(response, Exception) else ErrorCode(code)
        if request is self._in_flight:
            # The error of a leave ends nothing: the application may join again.
            self._in_flight = self._last_code = None
            self._owes = isinstance(response, Exception) or code in _NOT_NOW
            self._searched = True
            self._failed_us = now_us if self._owes else None
        elif isinstance(response, consumer.ConsumerGroupHeartbeatResponse | JoinGroupResponse) and not code:
            epoch = response.generation if isinstance(response, JoinGroupResponse) else response.member_epoch
            self._is_member = self._is_member or epoch > 0
        elif code in _NO_MEMBER:
            self._is_member = self._owes = False


class Leaving(OfProcesses[MembershipEnd]):
    """Checks all members of a world."""

    world: MembersWorldView
    changed = of_process(MembershipEnd.on_member_host)
    on_callback = of_process(MembershipEnd.on_callback)
    on_member_search = of_process(MembershipEnd.on_member_search)
    on_member_state = of_process(MembershipEnd.on_member_state)
    on_poll = of_process(MembershipEnd.on_poll)
    takes_request = of_process(MembershipEnd.takes_request)
    takes_response = of_process(MembershipEnd.takes_response)

    def new(self, host: str) -> MembershipEnd:
        """Return a process that is no member yet."""
        return MembershipEnd(host, self.world)

    def on_end(self, now_us: int) -> None:
        """Check that no member is left fenced."""
        for end in self.processes.values():
            self.report_all(end.lingers(now_us))
