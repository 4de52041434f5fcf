"""One member of a classic group on asyncio."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from fencepost.coordinator.protocol import classic
from fencepost.coordinator.protocol.consumer import LeaveGroupResponse
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.member.base.driver import MemberDriver
from fencepost.member.base.listener import MemberObserver, RebalanceListener
from fencepost.member.base.shell import outcome_of
from fencepost.member.base.transport import Clock, Reply, Transport
from fencepost.member.classic import actions
from fencepost.member.classic.assignor import Assignor
from fencepost.member.classic.config import ClassicConfig
from fencepost.member.classic.machine import ClassicMember, GroupResponse
from fencepost.member.classic.states import ClassicMemberState


class ClassicTransport(Transport, Protocol):
    """The way from one member of a classic group to its cluster: a leader needs the sizes of topics."""

    def partition_counts(self, topics: Iterable[str]) -> Reply[Mapping[str, int]]:
        """Count the partitions of topics from fresh metadata; topics that do not exist are missing."""


class ClassicDriver(MemberDriver):
    """One member of one classic group; see `MemberDriver` for its use by an application.

    A callback that raised is over nonetheless: it is not called again.
    """

    __slots__ = ()

    _RAISED_IS_OVER = True
    _member: ClassicMember
    _transport: ClassicTransport

    def __init__(
        self,
        group_id: str,
        transport: ClassicTransport,
        clock: Clock,
        *,
        assignors: Sequence[Assignor],
        listener: RebalanceListener | None = None,
        config: ClassicConfig | None = None,
        rng: random.Random,
        observer: MemberObserver | None = None,
    ) -> None:
        member = ClassicMember(group_id, config or ClassicConfig(), rng, assignors)
        super().__init__(member, transport, clock, listener=listener, observer=observer)

    @property
    def state(self) -> ClassicMemberState:
        """The member's state."""
        return self._member.state

    @property
    def is_connected(self) -> bool:
        """True if the last request to the coordinator was answered, or none was sent yet (KIP-457)."""
        return self._member.is_connected

    @property
    def heartbeat_interval_ms(self) -> int:
        """Interval between two heartbeats, in ms."""
        return self._member.config.heartbeat_interval_ms

    @property
    def is_settled(self) -> bool:
        """True if the member owns the assignment of its generation, and has nothing left to do."""
        return self._member.is_settled

    @property
    def is_rebalancing(self) -> bool:
        """True if a round of joining is under way or due, or its assignment is not taken up yet."""
        return self._member.is_rebalancing

    def rejoin(self) -> None:
        """Join again as soon as the application polls."""
        self._run(self._member.rejoin(self._clock.now_ms()))

    # -- carrying actions out ----------------------------------------------------------------------------

    def _send_group_request(self, action: actions.SendGroupRequest) -> None:
        if self._observer is not None:
            self._observer.on_request(action.request)
        reply = self._transport.send(action.request, action.timeout_ms)
        reply.add_done_callback(functools.partial(self._group_request_done, action))

    def _group_request_done(self, action: actions.SendGroupRequest, reply: Reply[Any]) -> None:
        response = outcome_of(reply)
        if self._stopped:
            return
        if isinstance(response, ProtocolError):
            response = _refusal(action.request, response.code)
        if self._observer is not None:
            self._observer.on_response(action.request, response)
        self._take(action.token, self._member.group_answered, response)

    def _count_partitions(self, action: actions.CountPartitions) -> None:
        reply = self._transport.partition_counts(action.topics)
        reply.add_done_callback(functools.partial(self._done, action.token, self._member.partitions_counted))

    _PERFORM: ClassVar[Mapping[type, Callable[[Any, Any], None]]] = {
        **MemberDriver._PERFORM,
        actions.SendGroupRequest: _send_group_request,
        actions.CountPartitions: _count_partitions,
        actions.ClassicMoved: MemberDriver._moved,
    }


def _refusal(request: actions.GroupRequest, code: ErrorCode) -> GroupResponse:
    """The response that stands for a refusal by the transport."""
    match request:
        case classic.JoinGroupRequest():
            return classic.JoinGroupResponse(error_code=code)
        case classic.SyncGroupRequest():
            return classic.SyncGroupResponse(error_code=code)
        case classic.HeartbeatRequest():
            return classic.HeartbeatResponse(error_code=code)
        case _:
            return LeaveGroupResponse(error_code=code)
