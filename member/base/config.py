"""A member's settings under the names and with the defaults of Kafka's consumer."""

from __future__ import annotations

import re

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.protocol.ids import MemberId

BY_DURATION = "by_duration:"
"""The prefix of an `auto_offset_reset` that ends with a duration (KIP-1106)."""


class ConsumerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one consumer. Times are in milliseconds.

    :raises FencepostError: if a value is impossible; the text names the setting.
    """

    max_poll_interval_ms: int = 300_000
    """The longest time between two polls. Sent to the coordinator as the rebalance timeout."""
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    """Time for which `commit` retries, in ms."""
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    auto_offset_reset: str = "latest"
    """The reset if nothing is committed, or if the log does not have the position. Reading goes to the log's
    beginning or end, or to its first record that is not older than a duration (`by_duration:PT1H`, KIP-1106).
    "none" and "error" both raise to the application."""
    group_instance_id: str | None = None
    group_remote_assignor: str | None = None
    client_rack: str | None = None
    client_id: str = ""
    unreleased_instance_id_retries: int = 0
    """Number of retries of a join that is refused with UNRELEASED_INSTANCE_ID; Kafka's own client never
    retries."""

    instance_holders: tuple[MemberId, ...] = ()
    """The member ids of stopped members of this process that may still hold the instance id."""

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
        self._check_offset_reset()
        for name in ("group_instance_id", "client_rack", "group_remote_assignor"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise FencepostError(f"{name}: expected text or nothing, got {value!r}")

    def _check_offset_reset(self) -> None:
        reset: object = self.auto_offset_reset
        if isinstance(reset, str) and reset.startswith(BY_DURATION):
            try:
                duration_ms(reset.removeprefix(BY_DURATION))
            except ValueError as error:
                raise FencepostError(f"auto_offset_reset: {error}") from error
        elif reset not in ("earliest", "latest", "none", "error"):
            raise FencepostError(
                "auto_offset_reset: expected earliest, latest, none, error or by_duration:PnDTnHnMn.nS, "
                f"got {reset!r}"
            )

    @property
    def resets_offsets(self) -> bool:
        """True if the member looks a missing position up in the log; false if it leaves it to the
        application."""
        return self.auto_offset_reset not in ("none", "error")

    @property
    def offset_reset_duration_ms(self) -> int | None:
        """The greatest age of the record at which reading starts, in ms; None if its age does not matter."""
        if not self.auto_offset_reset.startswith(BY_DURATION):
            return None
        return duration_ms(self.auto_offset_reset.removeprefix(BY_DURATION))


_NUMBER = r"[-+]?\d+"
_DURATION = re.compile(
    rf"(?P<sign>[-+]?)P(?=[-+\dT])(?:(?P<days>{_NUMBER})D)?"
    rf"(?:T(?=[-+\d])(?:(?P<hours>{_NUMBER})H)?(?:(?P<minutes>{_NUMBER})M)?"
    rf"(?:(?P<seconds>{_NUMBER})(?:[.,](?P<fraction>\d{{0,9}}))?S)?)?",
    re.ASCII | re.IGNORECASE,
)
_SECONDS = {"days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}
_LONGEST_S = 2**63 - 1


def duration_ms(text: str) -> int:
    """Return a duration in milliseconds: ISO-8601 as `java.time.Duration` reads it.

    A day has 24 hours, parts may have signs, and a part of a millisecond counts as one.

    :raises ValueError: if the text is not a duration, or one that is negative or too long; the message
        tells them apart.
    """
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not an ISO-8601 duration, such as P3D, PT1H30M or PT0.5S")
    parts = [int(found[unit] or 0) * seconds for unit, seconds in _SECONDS.items()]
    if max(*map(abs, parts), abs(sum(parts))) > _LONGEST_S:
        raise ValueError(f"the duration {text!r} is too long")
    nanoseconds = int((found["fraction"] or "").ljust(9, "0"))
    if (found["seconds"] or "").startswith("-"):
        nanoseconds = -nanoseconds
    nanoseconds += sum(parts) * 10**9
    if found["sign"] == "-":
        nanoseconds = -nanoseconds
    if nanoseconds < 0:
        raise ValueError(f"the duration {text!r} is negative")
    return -(-nanoseconds // 10**6)
