"""What a consumer is told, checked before anything is connected."""

from __future__ import annotations

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.member.consumer.config import ConsumerConfig

_REFUSED = {
    "session_timeout_ms": "the broker decides: its setting group.consumer.session.timeout.ms, or the group's "
    "consumer.session.timeout.ms",
    "heartbeat_interval_ms": "the broker decides: its setting group.consumer.heartbeat.interval.ms, or the "
    "group's consumer.heartbeat.interval.ms",
    "partition_assignment_strategy": "the broker assigns: choose among its assignors with "
    "group_remote_assignor",
    "rebalance_timeout_ms": "the time to give partitions up is max_poll_interval_ms",
}

ISOLATION_LEVELS = ("read_uncommitted", "read_committed")
OFFSET_RESETS = ("earliest", "latest", "none")


def refuse(**settings: object) -> None:
    """See to it that nothing is set that means nothing with KIP-848.

    :raises ValueError: with what to do instead.
    """
    for name, value in settings.items():
        if value is not None:
            raise ValueError(f"{name} can't be set with the consumer group protocol: {_REFUSED[name]}")


def check_group_id(group_id: str | None) -> str:
    """The group id.

    :raises ValueError: if there is none.
    """
    if not group_id or not group_id.strip():
        raise ValueError("group_id is needed: KIP848Consumer is a member of a group")
    return group_id


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """See to it that the value is one of these.

    :raises ValueError: if it is not.
    """
    if value not in choices:
        raise ValueError(f"{name} should be one of {', '.join(choices)}, got {value!r}")


def check_records(name: str, value: object) -> None:
    """See to it that a number of records is one, or None.

    :raises ValueError: if it is not.
    """
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError(f"`{name}` should be a positive integer, got {value!r}")


def member_config(**settings: object) -> ConsumerConfig:
    """The member's settings.

    :raises ValueError: if one is impossible; the text names it.
    """
    try:
        return ConsumerConfig(**settings)  # type: ignore[arg-type]
    except FencepostError as error:
        raise ValueError(str(error)) from error
