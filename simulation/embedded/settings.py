"""What an embedded Kafka is given, made into what it uses; mistakes are told in one line."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from fencepost.coordinator.codec.registry import ApiKey, api_name
from fencepost.coordinator.config import BROKER_RACK, NO_NEW_TOPICS, GroupCoordinatorConfig
from fencepost.coordinator.protocol.errors import ErrorCode, FencepostError
from fencepost.coordinator.sasl.credentials import check_user
from fencepost.coordinator.server.topic_configs import KAFKA_DEFAULTS, BrokerConfig
from fencepost.coordinator.suggestions import suggestion
from fencepost.simulation.embedded.names import ApiName, ErrorName
from fencepost.simulation.trace.topic import TraceTopic

MAX_BROKERS: Final = 100

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
"""Members ask often and wait for nobody, so that groups move at once. Sessions last as long as Kafka's do."""

_API_NAMES: Final = {key.name: api_name(key) for key in ApiKey}
"""As Kafka's documentation and its logs write them."""
_ARGUMENTS: Final = {
    "auto.create.topics.enable": "auto_create_topics",
    "num.partitions": "default_partitions",
    BROKER_RACK: "racks",
}
"""Settings of a broker that are arguments."""
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
"""Those that tests of consumers and producers ask for first: what is meant by a part of a name."""

Config: TypeAlias = GroupCoordinatorConfig | Mapping[str, object] | None
TopicConfig: TypeAlias = Mapping[str, object] | None
Api: TypeAlias = ApiKey | ApiName | int
"""An API: by its name, as a member of `ApiKey`, or by its number. Other ways to write a name work too."""
Error: TypeAlias = ErrorCode | ErrorName | int
"""An error: by its name, as a member of `ErrorCode`, or by its number."""
File: TypeAlias = str | os.PathLike[str]
Tls: TypeAlias = "ssl.SSLContext | tuple[File, File] | File | None"


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
            raise FencepostError(f"config: {name!r} is no name of a setting, expected text")
        if name in _ARGUMENTS:
            raise FencepostError(f"config: {name} is the argument {_ARGUMENTS[name]} of an embedded Kafka")
    profile = {
        field.replace("_", "."): value
        for field, value in msgspec.structs.asdict(PROFILE).items()
        if value != getattr(GroupCoordinatorConfig(), field)
    }
    return BrokerConfig.from_properties({**profile, **config})


def broker_count(brokers: int) -> int:
    """A number of brokers.

    :raises FencepostError: unless it is one that makes sense.
    """
    return whole("brokers", brokers, 1, MAX_BROKERS)


def topics_of(topics: Mapping[str, int] | Iterable[str] | None) -> dict[str, int]:
    """Partitions by topic; a topic without a number has one. Names and numbers are checked by the cluster.

    :raises FencepostError: if it is no such thing.
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
    """Settings of a topic as clients send them: all text. Names and values are checked by the cluster.

    :raises FencepostError: if it is no such thing.
    """
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        raise FencepostError(f"config={config!r}: expected a mapping of a topic's settings by Kafka's names")
    settings = {}
    for name, value in config.items():
        if not isinstance(name, str):
            raise FencepostError(f"config: {name!r} is no name of a setting, expected text")
        utf_8("config", name)
        if not isinstance(value, str | bool | int | float):
            raise FencepostError(f"config: {name}={value!r}: expected text, a number, True or False")
        settings[name] = str(value).lower() if isinstance(value, bool) else str(value)
        utf_8(f"config: {name}", settings[name])
    return settings


def ports_of(ports: object, brokers: int) -> tuple[int, ...]:
    """Ports, one for each broker; none of them for free ones.

    :raises FencepostError: if they are none, or not as many as brokers.
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
    """What to listen on.

    :raises FencepostError: if it is no text, empty, or can't be a name.
    """
    try:
        if isinstance(host, str) and host.strip() and host.encode("idna"):
            return host
    except UnicodeError:
        pass  # what the names of machines can't have
    raise FencepostError(f"host={host!r}: expected an address of this machine, such as '127.0.0.1'")


def users_of(users: Mapping[str, str] | None) -> dict[str, str]:
    """Passwords by user; none is for a server that takes anybody.

    :raises FencepostError: if it is no such thing, or there is nobody in it; the text holds no password.
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
    """The server's side of TLS: a context as it is, or PEM files: (certificate, key), or one with both.

    :raises FencepostError: if the files are none of that.
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
    """A whole number within bounds.

    :raises FencepostError: if it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high and value > high):
        bounds = f"{low} to {high}" if high else f"{low} or more"
        raise FencepostError(f"{what}={value!r}: expected a whole number, {bounds}")
    return value


def flag(what: str, value: object) -> bool:
    """True or False, and not something that counts as one of them: 'no' would count as True.

    :raises FencepostError: if it is neither.
    """
    if not isinstance(value, bool):
        raise FencepostError(f"{what}={value!r}: expected True or False")
    return value


def duration(what: str, value: float) -> float:
    """A length of time.

    :raises FencepostError: unless it is a number that is not negative.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise FencepostError(f"{what}={value!r}: expected seconds, 0 or more")
    return float(value)


def utf_8(what: str, text: str) -> bytes:
    """Text as Kafka has it.

    :raises FencepostError: if half of a pair of surrogates is in it, which nothing stands for.
    """
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise FencepostError(f"{what}={text!r}: expected text that UTF-8 can express") from None


def name_of(what: str, name: object, expected: str) -> str:
    """What somebody or something is called.

    :raises FencepostError: if it is no text, or blank; the message says what was expected.
    """
    if not isinstance(name, str) or not name.strip():
        raise FencepostError(f"{what} {name!r}: expected {expected}")
    utf_8(what, name)
    return name


def api_of(api: Api) -> ApiKey:
    """An API by its number or its name, such as `ConsumerGroupHeartbeat` or `CONSUMER_GROUP_HEARTBEAT`.

    :raises FencepostError: if it is not spoken here.
    """
    if isinstance(api, str):
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", api).replace("-", "_").upper()
        return ApiKey[_known("API", api, name, _API_NAMES, f"known are {', '.join(_API_NAMES.values())}")]
    if isinstance(api, bool) or api not in list(ApiKey):
        raise FencepostError(f"API {api!r} is not spoken here")
    return ApiKey(api)


def error_of(error: Error) -> ErrorCode:
    """An error by its number or its name, such as `NOT_COORDINATOR`.

    :raises FencepostError: if there is none of that name or number, or it stands for success.
    """
    if isinstance(error, str):
        expected = "expected a name that Kafka has, such as NOT_COORDINATOR"
        found = ErrorCode[_known("error", error, error.upper(), _ERROR_NAMES, expected)]
    else:
        if isinstance(error, bool) or error not in list(ErrorCode):
            raise FencepostError(f"error {error!r} is none of Kafka's: -1 to {max(ErrorCode)}")
        found = ErrorCode(error)
    if found is ErrorCode.NONE:
        raise FencepostError("error NONE is success: nothing would fail")
    return found


def _known(what: str, given: str, name: str, written: Mapping[str, str], otherwise: str) -> str:
    """The name, if it is one of those. `written` has how Kafka writes each."""
    if name in written:
        return name
    hint = suggestion(given, written.values(), otherwise, usual=_USUAL_ERRORS)
    raise FencepostError(f"{what} {given!r} is unknown; {hint}")


def trace_topic_of(text: str | None, tls: ssl.SSLContext | None) -> str | None:
    """The setting `trace_topic` as it is, once it is known to make sense.

    :raises FencepostError: if it is neither HOST:PORT/TOPIC nor the name of a topic, or a topic of a Kafka
        that asks more of its clients than it can show itself.
    """
    if text is None:
        return None
    if not isinstance(text, str) or not text:
        raise FencepostError(f"trace_topic={text!r}: expected HOST:PORT/TOPIC, or a topic of this Kafka")
    if "/" in text:
        TraceTopic.parse(text, option="trace_topic")
    elif tls is not None and tls.verify_mode is ssl.CERT_REQUIRED:
        # The trace comes in as clients do, and a context does not give its own certificate and key away.
        raise FencepostError(
            f"trace_topic={text!r}: tls demands a certificate of clients, and the trace has none to show;"
            " expected verify_mode=ssl.CERT_OPTIONAL, or HOST:PORT/TOPIC of another Kafka"
        )
    return text
