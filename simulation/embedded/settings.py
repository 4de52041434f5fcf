"""Conversion of the arguments of an embedded Kafka into the values that it uses. A wrong argument raises a
one-line error."""

from __future__ import annotations

import contextlib
import os
import re
import ssl
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from fencepost.coordinator.codec.registry import ApiKey, api_name
from fencepost.coordinator.config import BROKER_RACK, NO_NEW_TOPICS, GroupCoordinatorConfig
from fencepost.coordinator.protocol.errors import ErrorCode, FencepostError, ProtocolError
from fencepost.coordinator.sasl.credentials import check_user
from fencepost.coordinator.server.topic_configs import KAFKA_DEFAULTS, TOPIC_SETTINGS, BrokerConfig
from fencepost.coordinator.suggestions import suggestion
from fencepost.simulation.embedded.names import ApiName, ErrorName
from fencepost.simulation.trace.topic import TraceTopic

MAX_BROKERS: Final = 100
LOOPBACK: Final = "127.0.0.1"

PROFILE: Final = GroupCoordinatorConfig(
    group_consumer_min_session_timeout_ms=100,
    group_consumer_min_heartbeat_interval_ms=10,
    group_consumer_heartbeat_interval_ms=100,
    group_consumer_assignment_interval_ms=0,
    group_streams_min_session_timeout_ms=100,
    group_streams_min_heartbeat_interval_ms=10,
    group_streams_heartbeat_interval_ms=100,
    group_streams_assignment_interval_ms=0,
    group_streams_initial_rebalance_delay_ms=0,
    group_initial_rebalance_delay_ms=0,
    group_min_session_timeout_ms=100,
)
"""The quick profile: frequent heartbeats and no initial delay, so that groups rebalance at once. Session
timeouts are Kafka's defaults."""

_API_NAMES: Final = {key.name: api_name(key) for key in ApiKey}
"""API names as Kafka's documentation and its logs write them."""
_ARGUMENTS: Final = {
    "auto.create.topics.enable": "auto_create_topics",
    "num.partitions": "default_partitions",
    BROKER_RACK: "racks",
}
"""Settings of a broker that are arguments of an embedded Kafka."""
_ERROR_NAMES: Final = {name: name for name in ErrorCode.__members__}
_USUAL_ERRORS: Final = (
    "FENCED_MEMBER_EPOCH",
    "UNKNOWN_MEMBER_ID",
    "NOT_COORDINATOR",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "REBALANCE_IN_PROGRESS",
    "ILLEGAL_GENERATION",
    "REQUEST_TIMED_OUT",
    "NOT_LEADER_OR_FOLLOWER",
    "UNKNOWN_TOPIC_OR_PARTITION",
    "GROUP_AUTHORIZATION_FAILED",
    "INVALID_PRODUCER_EPOCH",
    "PRODUCER_FENCED",
)
"""APIs that tests of consumers and producers use most: a part of a name suggests these first."""

Config: TypeAlias = GroupCoordinatorConfig | Mapping[str, object] | None
TopicConfig: TypeAlias = Mapping[str, object] | None
Api: TypeAlias = ApiKey | ApiName | int
"""An API: by its name, as a member of `ApiKey`, or by its number. Other ways to write a name work too."""
Error: TypeAlias = ErrorCode | ErrorName | int
"""An error: by its name, as a member of `ErrorCode`, or by its number."""
File: TypeAlias = str | os.PathLike[str]
Tls: TypeAlias = "ssl.SSLContext | tuple[File, File] | File | None"


@contextlib.contextmanager
def refused_by_kafka() -> Iterator[None]:
    """Raise what Kafka refuses as an error of the caller.

    :raises FencepostError: then, with Kafka's message.
    """
    try:
        yield
    except ProtocolError as error:
        raise FencepostError(error.message) from None


def config_of(config: Config) -> BrokerConfig:
    """Return a whole configuration unchanged, or settings by Kafka's names over `PROFILE`.

    :raises FencepostError: for a name that does not exist, or a value that Kafka would refuse.
    """
    if isinstance(config, GroupCoordinatorConfig):
        return BrokerConfig(config, NO_NEW_TOPICS, KAFKA_DEFAULTS)
    if config is None:
        return BrokerConfig(PROFILE, NO_NEW_TOPICS, KAFKA_DEFAULTS)
    if not isinstance(config, Mapping):
        raise FencepostError(
            f"config={config!r}: expected a GroupCoordinatorConfig, or a mapping of settings by Kafka's names"
        )
    for name in config:
        if not isinstance(name, str):
            raise FencepostError(f"config: {name!r} is not the name of a setting, expected text")
        if name in _ARGUMENTS:
            raise FencepostError(f"config: {name} is the argument {_ARGUMENTS[name]} of an embedded Kafka")
    return BrokerConfig.from_properties({**quick_properties(), **config})


def quick_properties() -> dict[str, object]:
    """Return the settings of `PROFILE` by Kafka's names."""
    return {
        field.replace("_", "."): value
        for field, value in msgspec.structs.asdict(PROFILE).items()
        if value != getattr(GroupCoordinatorConfig(), field)
    }


def broker_count(brokers: int) -> int:
    """Return a checked number of brokers.

    :raises FencepostError: if it is out of range.
    """
    return whole("brokers", brokers, 1, MAX_BROKERS)


def topics_of(topics: Mapping[str, int] | Iterable[str] | None) -> dict[str, int]:
    """Return the number of partitions by topic; a topic without a number has one. The cluster checks names
    and numbers.

    :raises FencepostError: if it is neither a mapping nor names.
    """
    if topics is None:
        return {}
    if isinstance(topics, str):
        return {topics: 1}
    if not isinstance(topics, Iterable):
        raise FencepostError(f"topics={topics!r}: expected partitions by name, or names")
    counts = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics, 1)
    for name, partitions in counts.items():
        if not isinstance(name, str):
            raise FencepostError(f"topics: {name!r} is no topic's name, expected text")
        whole(f"topics: {name}", partitions, 1, None)
    return counts


def topic_config_of(config: TopicConfig) -> dict[str, str]:
    """Return the settings of a topic as clients send them: all text. The cluster checks names and values.

    :raises FencepostError: if it is not a mapping of texts.
    """
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        raise FencepostError(f"config={config!r}: expected a mapping of a topic's settings by Kafka's names")
    settings = {}
    for name, value in config.items():
        if not isinstance(name, str):
            raise FencepostError(f"config: {name!r} is not the name of a setting, expected text")
        utf_8("config", name)
        if name not in TOPIC_SETTINGS:
            near = suggestion(name, TOPIC_SETTINGS, "expected a setting of a topic, such as retention.ms")
            raise FencepostError(f"Unknown topic config name: {name}; {near}")
        if not isinstance(value, str | bool | int | float):
            raise FencepostError(f"config: {name}={value!r}: expected text, a number, True or False")
        settings[name] = str(value).lower() if isinstance(value, bool) else str(value)
        utf_8(f"config: {name}", settings[name])
    return settings


def ports_of(ports: object, brokers: int) -> tuple[int, ...]:
    """Return the port of each broker; an empty sequence stands for free ports.

    :raises FencepostError: if they are not valid ports, or not as many as brokers.
    """
    if isinstance(ports, str) or not isinstance(ports, Iterable):
        raise FencepostError(f"ports={ports!r}: expected a list with one for each broker, such as [9092]")
    found = tuple(whole("ports", port, 0, 65_535) for port in ports)
    if found and len(found) != brokers:
        raise FencepostError(f"ports: {len(found)} ports for {brokers} brokers")
    return found


def racks_of(racks: object, brokers: int) -> tuple[str | None, ...]:
    """Return the rack of each broker; an empty sequence if they have none.

    :raises FencepostError: if they are not names, or not one for each broker.
    """
    if isinstance(racks, str) or not isinstance(racks, Iterable):
        raise FencepostError(f"racks={racks!r}: expected one for each broker, such as ['a', 'b', 'c']")
    found = tuple(None if rack is None else name_of("rack", rack, "a name or None") for rack in racks)
    if found and len(found) != brokers:
        raise FencepostError(f"racks: {len(found)} racks for {brokers} brokers, expected one for each")
    return found


def address(host: str) -> str:
    """Return the address to listen on.

    :raises FencepostError: if it is not text, is empty, or can't be a host name.
    """
    try:
        if isinstance(host, str) and host.strip() and host.encode("idna"):
            return host
    except UnicodeError:
        pass  # characters that host names can't have
    raise FencepostError(f"host={host!r}: expected an address of this machine, such as '127.0.0.1'")


def users_of(users: Mapping[str, str] | None) -> dict[str, str]:
    """Return passwords by user; an empty mapping stands for a server without login.

    :raises FencepostError: if it is not a mapping of texts, or is empty; the text holds no password.
    """
    if users is None:
        return {}
    if not isinstance(users, Mapping):
        raise FencepostError("users: expected a mapping of passwords by name")
    if not users:
        raise FencepostError("users: expected at least one user, or None")
    for name, password in users.items():
        check_user(name, password)
        utf_8("user", name)
        try:
            password.encode()
        except UnicodeEncodeError:
            raise FencepostError(f"user {name!r}: expected a password that UTF-8 can express") from None
    return dict(users)


def tls_of(tls: Tls) -> ssl.SSLContext | None:
    """Return the server's TLS context: the given context, or one from PEM files (certificate and key, or one
    file with both).

    :raises FencepostError: if the files are not valid.
    """
    if tls is None or (not isinstance(tls, str | os.PathLike | tuple) and hasattr(tls, "wrap_bio")):
        return tls
    files: tuple[object, ...] = tls if isinstance(tls, tuple) else (tls,)
    paths = [Path(file) for file in files if isinstance(file, str | os.PathLike)]
    if len(paths) != len(files) or not 1 <= len(files) <= 2:
        raise FencepostError(
            f"tls={tls!r}: expected an ssl.SSLContext, a PEM file, or the PEM files (certificate, key)"
        )
    from fencepost.coordinator.server.access import tls_context

    return tls_context(*paths)


def whole(what: str, value: object, low: int, high: int | None) -> int:
    """Return a whole number within bounds.

    :raises FencepostError: if it is not a whole number, or out of bounds.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high and value > high):
        bounds = f"{low} to {high}" if high else f"{low} or more"
        raise FencepostError(f"{what}={value!r}: expected a whole number, {bounds}")
    return value


def flag(what: str, value: object) -> bool:
    """Return True or False, and accept nothing else: 'no' would count as True.

    :raises FencepostError: if it is neither.
    """
    if not isinstance(value, bool):
        raise FencepostError(f"{what}={value!r}: expected True or False")
    return value


def duration(what: str, value: float) -> float:
    """Return a length of time in seconds.

    :raises FencepostError: if it is not a number, or is negative.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise FencepostError(f"{what}={value!r}: expected seconds, 0 or more")
    return float(value)


def utf_8(what: str, text: str) -> bytes:
    """Return text in UTF-8, Kafka's encoding.

    :raises FencepostError: if it contains an unpaired surrogate, which UTF-8 can't express.
    """
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise FencepostError(f"{what}={text!r}: expected text that UTF-8 can express") from None


def name_of(what: str, name: object, expected: str) -> str:
    """Return the name of a client, group or other object, once it is checked.

    :raises FencepostError: if it is not text, or is blank; the message says what was expected.
    """
    if not isinstance(name, str) or not name.strip():
        raise FencepostError(f"{what} {name!r}: expected {expected}")
    utf_8(what, name)
    return name


def api_of(api: Api) -> ApiKey:
    """Return an API by its number or its name, such as `ConsumerGroupHeartbeat` or
    `CONSUMER_GROUP_HEARTBEAT`.

    :raises FencepostError: if the endpoint does not speak it.
    """
    if isinstance(api, str):
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", api).replace("-", "_").upper()
        return ApiKey[_known("API", api, name, _API_NAMES, f"known are {', '.join(_API_NAMES.values())}")]
    if isinstance(api, bool) or api not in list(ApiKey):
        raise FencepostError(f"API {api!r} is not supported")
    return ApiKey(api)


def error_of(error: Error) -> ErrorCode:
    """Return an error by its number or its name, such as `NOT_COORDINATOR`.

    :raises FencepostError: if Kafka has no such error, or it stands for success.
    """
    if isinstance(error, str):
        expected = "expected a name that Kafka has, such as NOT_COORDINATOR"
        found = ErrorCode[_known("error", error, error.upper(), _ERROR_NAMES, expected)]
    else:
        if isinstance(error, bool) or error not in list(ErrorCode):
            raise FencepostError(f"error {error!r} is not one of Kafka's: -1 to {max(ErrorCode)}")
        found = ErrorCode(error)
    if found is ErrorCode.NONE:
        raise FencepostError("error NONE is success: nothing would fail")
    return found


def _known(what: str, given: str, name: str, written: Mapping[str, str], otherwise: str) -> str:
    """Return the name, if it is known. `written` has Kafka's spelling of each name."""
    if name in written:
        return name
    hint = suggestion(given, written.values(), otherwise, usual=_USUAL_ERRORS)
    raise FencepostError(f"{what} {given!r} is unknown; {hint}")


def trace_topic_of(text: str | None, tls: ssl.SSLContext | None) -> str | None:
    """Return the setting `trace_topic` unchanged, after checking it.

    :raises FencepostError: if it is neither HOST:PORT/TOPIC nor the name of a topic, or if this Kafka demands
        client certificates and the topic is its own.
    """
    if text is None:
        return None
    if not isinstance(text, str) or not text:
        raise FencepostError(f"trace_topic={text!r}: expected HOST:PORT/TOPIC, or a topic of this Kafka")
    if "/" in text:
        TraceTopic.parse(text, option="trace_topic")
    elif tls is not None and tls.verify_mode is ssl.CERT_REQUIRED:
        # The trace is written by an ordinary client, and a context does not reveal its own certificate and
        # key.
        raise FencepostError(
            f"trace_topic={text!r}: tls demands a certificate of clients, and the trace has none to show;"
            " expected verify_mode=ssl.CERT_OPTIONAL, or HOST:PORT/TOPIC of another Kafka"
        )
    return text
