"""A member's settings under the names and with the defaults of Kafka's consumer."""

from __future__ import annotations

from typing import Literal

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError

AutoOffsetReset = Literal["earliest", "latest", "none", "error"]


class ConsumerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one consumer. Times are milliseconds.

    :raises FencepostError: if a value is impossible; the text names the setting.
    """

    max_poll_interval_ms: int = 300_000
    """The longest time between two polls. Sent to the coordinator as the rebalance time-out."""
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    """How long `commit` retries."""
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    auto_offset_reset: AutoOffsetReset = "latest"
    """What to do where nothing is committed; "none" and "error" both raise to the application."""
    group_instance_id: str | None = None
    group_remote_assignor: str | None = None
    client_rack: str | None = None
    client_id: str = ""
    unreleased_instance_id_retries: int = 0
    """How often a join that meets UNRELEASED_INSTANCE_ID is tried again; Kafka's own client never does."""

    def __post_init__(self) -> None:
        for name in (
            "max_poll_interval_ms",
            "retry_backoff_ms",
            "retry_backoff_max_ms",
            "request_timeout_ms",
            "default_api_timeout_ms",
            "auto_commit_interval_ms",
        ):
            time: object = getattr(self, name)
            if not isinstance(time, int | float) or time < 1:
                raise FencepostError(f"{name}: expected at least 1 ms, got {time!r}")
        if self.unreleased_instance_id_retries < 0:
            raise FencepostError(
                "unreleased_instance_id_retries: expected 0 or more, "
                f"got {self.unreleased_instance_id_retries}"
            )
        if self.auto_offset_reset not in ("earliest", "latest", "none", "error"):
            raise FencepostError(
                f"auto_offset_reset: expected earliest, latest, none or error, got {self.auto_offset_reset!r}"
            )
        for name in ("group_instance_id", "client_rack", "group_remote_assignor"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise FencepostError(f"{name}: expected text or nothing, got {value!r}")
