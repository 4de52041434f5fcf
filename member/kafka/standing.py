"""Where a consumer stands: not started, running, stopped, or ended by an error of its start."""

from __future__ import annotations

from typing import NoReturn

from aiokafka.errors import ConsumerStoppedError, IllegalStateError

from fencepost.coordinator.protocol.ids import MemberId
from fencepost.member.consumer.states import ConsumerMemberState
from fencepost.member.kafka.logs import LogQuestions
from fencepost.member.kafka.member import STOPPED, KafkaMember


class Standing(LogQuestions):
    """The part of a consumer that knows whether it runs, and refuses calls if it does not."""

    def __init__(self) -> None:
        self._session: KafkaMember | None = None
        self._closed = False
        self._failed_start: KafkaMember | None = None
        """The session of a start that ended with an error which no retry mends, until `stop`."""
        self._start_error: BaseException | None = None
        """The error that ended the start and closed the consumer."""

    @property
    def member_id(self) -> MemberId:
        """The member id, kept from start to stop; empty before the start."""
        return MemberId("") if self._session is None else self._session.driver.member_id

    @property
    def member_epoch(self) -> int:
        """The newest epoch received; 0 before the start and while out of the group."""
        return 0 if self._session is None else self._session.driver.member_epoch

    @property
    def state(self) -> ConsumerMemberState:
        """Where the member stands; UNSUBSCRIBED before the start."""
        if self._session is None:
            return ConsumerMemberState.UNSUBSCRIBED
        return ConsumerMemberState(self._session.driver.state)

    def is_connected(self) -> bool:
        """Return True if the consumer runs and its last request to the coordinator was answered (KIP-457).

        A heartbeat goes out every few seconds, so a lost connection is noticed with the next one.
        """
        session = self._session
        return session is not None and not self._closed and session.is_connected

    def _running(self) -> KafkaMember:
        """The session, until everything of it is closed: callbacks may use it while the consumer stops.

        :raises IllegalStateError: before the start.
        :raises ConsumerStoppedError: once the consumer is stopped.
        :raises KafkaError: if its start ended with an error that no retry mends.
        :raises RuntimeError: on another event loop than the consumer's.
        """
        session = self._session
        if self._closed and (session is None or session.ended):
            self._raise_stopped()
        if session is None:
            raise IllegalStateError("the consumer is not started")
        session.check_loop()
        return session

    def _raise_stopped(self) -> NoReturn:
        if self._failed_start is not None:
            self._failed_start.check_failed()
        if self._start_error is not None:
            raise ConsumerStoppedError(f"{STOPPED}: its start failed with {self._start_error!r}")
        raise ConsumerStoppedError(STOPPED)
