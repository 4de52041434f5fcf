"""A consumer in a classic group, with its own assignors; otherwise it is like KIP848Consumer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.member.base.clock import LoopClock
from fencepost.member.base.listener import AnyState
from fencepost.member.classic.assignor import Assignor
from fencepost.member.classic.config import ClassicConfig
from fencepost.member.classic.driver import ClassicDriver
from fencepost.member.classic.states import ClassicMemberState
from fencepost.member.kafka.connections import Connections
from fencepost.member.kafka.consumer import KIP848Consumer
from fencepost.member.kafka.member import KafkaMember


class ClassicSession(KafkaMember):
    """A member of a classic group on a client that has learned of its cluster."""

    driver: ClassicDriver

    def __init__(self, *given: Any, assignors: Sequence[Assignor], **rest: Any) -> None:
        self._assignors = assignors
        super().__init__(*given, **rest)

    def _make_driver(self, clock: LoopClock, **options: Any) -> ClassicDriver:
        return ClassicDriver(self._group_id, self._transport, clock, assignors=self._assignors, **options)

    @property
    def is_settled(self) -> bool:
        """True if the member has taken up the assignment of its generation."""
        return self.driver.is_settled

    def _settles_in(self, target: AnyState) -> bool:
        return self.driver.is_settled

    @property
    def is_connected(self) -> bool:
        """True if the last request to the coordinator was answered, or none was sent yet (KIP-457)."""
        return self.driver.is_connected

    @property
    def _is_steady(self) -> bool:
        return self.driver.is_settled

    @property
    def has_failed(self) -> bool:
        """True if the member has stopped for good."""
        return self.driver.state is ClassicMemberState.FATAL


class ClassicConsumer(KIP848Consumer):
    """A member of a classic group. It offers the assignors in this order, and subscribes to names only.

    Further settings are those of KIP848Consumer.

    :raises ValueError: if a setting is impossible.
    """

    _session: ClassicSession | None
    _session_type = ClassicSession

    def __init__(
        self,
        *topics: str,
        assignors: Sequence[Assignor],
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int = 3_000,
        **settings: Any,
    ) -> None:
        super().__init__(*topics, **settings)
        try:
            self._config = ClassicConfig(
                **msgspec.structs.asdict(self._config),
                session_timeout_ms=session_timeout_ms,
                heartbeat_interval_ms=heartbeat_interval_ms,
                metadata_max_age_ms=settings.get("metadata_max_age_ms", 300_000),
            )
        except FencepostError as error:
            raise ValueError(str(error)) from error
        self._assignors = assignors

    def _make_session(self, connections: Connections, **options: Any) -> KafkaMember:
        return super()._make_session(connections, **options, assignors=self._assignors)

    @property
    def is_started(self) -> bool:
        """True if it has connected, and begun to join."""
        return self._session is not None

    @property
    def is_settled(self) -> bool:
        """True if the member owns the assignment of its generation, and has nothing left to do."""
        return self._session is not None and self._session.is_settled

    @property
    def round_s(self) -> float:
        """The longest time that the current round of joining may take, in seconds; 0 without a round."""
        under_way = self._session is not None and self._session.driver.is_rebalancing
        return self._config.max_poll_interval_ms / 1000 if under_way else 0

    def rejoin(self) -> None:
        """Join the group again in one of the next polls, although nothing has happened to it."""
        if self._session is not None:
            self._session.driver.rejoin()
