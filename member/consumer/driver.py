"""One member of a consumer group (KIP-848) on asyncio.

A steady heartbeat costs no task: the machine's deadline arms a timer, the timer sends, and the done-callback
of the response feeds the machine.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatResponse
from fencepost.coordinator.protocol.errors import ProtocolError
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.member.base.actions import ResolveTopicNames
from fencepost.member.base.config import ConsumerConfig
from fencepost.member.base.driver import MemberDriver
from fencepost.member.base.listener import MemberObserver, RebalanceListener
from fencepost.member.base.shell import outcome_of
from fencepost.member.base.transport import Clock, Reply, Transport
from fencepost.member.consumer import actions
from fencepost.member.consumer.machine import ConsumerMember
from fencepost.member.consumer.states import ConsumerMemberState


class ConsumerDriver(MemberDriver):
    """One member of one consumer group; see `MemberDriver` for its use by an application."""

    __slots__ = ("_heartbeat", "_heartbeat_answered")

    _member: ConsumerMember

    def __init__(
        self,
        group_id: str,
        member_id: MemberId,
        transport: Transport,
        clock: Clock,
        *,
        listener: RebalanceListener | None = None,
        config: ConsumerConfig | None = None,
        rng: random.Random,
        observer: MemberObserver | None = None,
    ) -> None:
        member = ConsumerMember(group_id, member_id, config or ConsumerConfig(), rng)
        super().__init__(member, transport, clock, listener=listener, observer=observer)
        self._heartbeat: actions.SendHeartbeat | None = None
        self._heartbeat_answered: Callable[[Reply[Any]], None] = self._discard

    @property
    def state(self) -> ConsumerMemberState:
        """The member's state."""
        return self._member.state

    @property
    def instance_holders(self) -> tuple[MemberId, ...]:
        """The member ids under which this process may hold the member's instance id."""
        return self._member.instance_holders

    def _send_heartbeat(self, action: actions.SendHeartbeat) -> None:
        if action is not self._heartbeat:
            self._heartbeat = action
            self._heartbeat_answered = functools.partial(self._heartbeat_done, action)
        if self._observer is not None:
            self._observer.on_request(action.request)
        reply = self._transport.send(action.request, self._member.config.request_timeout_ms)
        reply.add_done_callback(self._heartbeat_answered)

    def _heartbeat_done(self, action: actions.SendHeartbeat, reply: Reply[Any]) -> None:
        response = outcome_of(reply)
        if self._stopped:
            return
        if type(response) is ConsumerGroupHeartbeatResponse:  # as a rule
            if self._observer is not None:
                self._observer.on_response(action.request, response)
            self._run(self._member.heartbeat_answered(action.token, response, self._clock.now_ms()))
            return
        if isinstance(response, ProtocolError):
            response = ConsumerGroupHeartbeatResponse(
                error_code=response.code, error_message=response.message
            )
        if self._observer is not None:
            self._observer.on_response(action.request, response)
        if isinstance(response, Exception):
            self._failed(action.token, response)
        else:
            self._run(self._member.heartbeat_answered(action.token, response, self._clock.now_ms()))

    def _resolve_topic_names(self, action: ResolveTopicNames) -> None:
        reply = self._transport.topic_names(action.topic_ids)
        reply.add_done_callback(functools.partial(self._done, action.token, self._member.topic_names_found))

    @staticmethod
    def _discard(reply: Reply[Any]) -> None:
        outcome_of(reply)

    _PERFORM: ClassVar[Mapping[type, Callable[[Any, Any], None]]] = {
        **MemberDriver._PERFORM,
        actions.SendHeartbeat: _send_heartbeat,
        ResolveTopicNames: _resolve_topic_names,
        actions.ConsumerMoved: MemberDriver._moved,
    }
