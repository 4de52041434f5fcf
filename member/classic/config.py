"""Settings of a member of a classic group."""

from __future__ import annotations

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.member.base.config import ConsumerConfig


class ClassicConfig(ConsumerConfig, frozen=True, kw_only=True):
    """The settings of every consumer, and those that the classic protocol leaves to the member. Times are in
    milliseconds.

    :raises FencepostError: if a value is impossible; the text names the setting.
    """

    session_timeout_ms: int = 45_000
    """Time without a heartbeat after which the coordinator takes the member for dead, in ms."""
    heartbeat_interval_ms: int = 3_000
    metadata_max_age_ms: int = 300_000
    """Interval at which a leader checks its topics for new partitions, in ms."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("session_timeout_ms", "heartbeat_interval_ms", "metadata_max_age_ms"):
            time: object = getattr(self, name)
            if not isinstance(time, int | float) or time < 1:
                raise FencepostError(f"{name}: expected at least 1 ms, got {time!r}")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise FencepostError(
                f"heartbeat_interval_ms: expected less than session_timeout_ms, {self.session_timeout_ms}, "
                f"got {self.heartbeat_interval_ms}"
            )
