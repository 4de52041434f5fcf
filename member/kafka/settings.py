"""The settings of a consumer, checked before anything is connected."""

from __future__ import annotations

from collections.abc import Iterable

from aiokafka.conn import collect_hosts

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.member.base.arguments import check_function, check_methods
from fencepost.member.base.config import BY_DURATION, ConsumerConfig

_REFUSED = {
    "session_timeout_ms": "the broker decides: its setting group.{protocol}.session.timeout.ms, or the "
    "group's {protocol}.session.timeout.ms",
    "heartbeat_interval_ms": "the broker decides: its setting group.{protocol}.heartbeat.interval.ms, or the "
    "group's {protocol}.heartbeat.interval.ms",
    "partition_assignment_strategy": "the broker assigns: choose among its assignors with "
    "group_remote_assignor",
    "rebalance_timeout_ms": "the time to give partitions up is max_poll_interval_ms",
    "group_instance_id": "its groups have no static members",
    "group_remote_assignor": "brokers have one assignor of tasks",
}

ISOLATION_LEVELS = ("read_uncommitted", "read_committed")
OFFSET_RESETS = ("earliest", "latest", "none", f"{BY_DURATION}PnDTnHnMn.nS")


def refuse(protocol: str, **settings: object) -> None:
    """Check that no setting is given that means nothing with a group protocol.

    :raises ValueError: with what to do instead.
    """
    for name, value in settings.items():
        if value is not None:
            reason = _REFUSED[name].format(protocol=protocol)
            raise ValueError(f"{name} can't be set with the {protocol} group protocol: {reason}")


def check_servers(value: object) -> None:
    """Check that these can be the addresses of brokers.

    :raises ValueError: if they can't.
    """
    try:
        hosts = collect_hosts(value)
    except (AttributeError, TypeError, ValueError):
        hosts = []
    if not any(host for host, _, _ in hosts) or max(port for _, port, _ in hosts) > 65_535:
        raise ValueError(f"bootstrap_servers should be host:port, or several of them, got {value!r}")


def check_client_id(client_id: object) -> str:
    """Check the client id.

    :raises ValueError: if it is not text.
    """
    if not isinstance(client_id, str):
        raise ValueError(f"client_id should be text, got {client_id!r}")
    return client_id


def check_group_id(group_id: object) -> str:
    """Check the group id.

    :raises ValueError: if it is missing.
    """
    if not isinstance(group_id, str) or not group_id.strip():
        raise ValueError(f"group_id is needed: KIP848Consumer is a member of a group; got {group_id!r}")
    return group_id


def check_names(topics: Iterable[object]) -> None:
    """Check that these can be names of topics.

    :raises TypeError: if one can't be.
    """
    if not all(isinstance(topic, str) and topic for topic in topics):
        raise TypeError("Topics should be list of strings")


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Check that the value is one of these.

    :raises ValueError: if it is not.
    """
    if value not in choices:
        raise ValueError(f"{name} should be one of {', '.join(choices)}, got {value!r}")


def check_offset_reset(value: object) -> None:
    """Check that this can be an `auto_offset_reset`, except its duration: `member_config` checks that.

    :raises ValueError: if it can't be.
    """
    if not isinstance(value, str) or not value.startswith(BY_DURATION):
        check_choice("auto_offset_reset", value, OFFSET_RESETS)


def check_records(name: str, value: object) -> None:
    """Check that a number of records is valid, or None.

    :raises ValueError: if it is not.
    """
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError(f"`{name}` should be a positive integer, got {value!r}")


def check_limits(**limits: object) -> None:
    """Check that each of these can be a limit of a fetch: bytes, or milliseconds.

    :raises ValueError: if one can't be.
    """
    for name, value in limits.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
            raise ValueError(f"{name} should be a whole number from 0 to 2^31 - 1, got {value!r}")


def check_offset(offset: object) -> int:
    """Check an offset from a program.

    :raises ValueError: if no log can have it.
    """
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset < 2**63:
        raise ValueError(f"Offset must be a positive integer below 2^63, got {offset!r}")
    return offset


def check_functions(**functions: object) -> None:
    """Check that each of these is a plain function, or None.

    :raises TypeError: if one is not.
    """
    for name, value in functions.items():
        check_function(name, value)


def check_objects(observer: object, token_provider: object) -> None:
    """Check that these have the methods that are called.

    :raises TypeError: if one is missing.
    """
    calls = ("on_state", "on_request", "on_response", "on_callback", "on_commit")
    check_methods("observer", observer, *calls, plain=True)
    check_methods("sasl_oauth_token_provider", token_provider, "token")


def member_config(**settings: object) -> ConsumerConfig:
    """Return the member's settings.

    :raises ValueError: if one is impossible; the text names it.
    """
    try:
        return ConsumerConfig(**settings)  # type: ignore[arg-type]
    except FencepostError as error:
        raise ValueError(str(error)) from error
