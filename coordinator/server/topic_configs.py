"""The settings of topics: Kafka's names, types and defaults, their parsing, and inherited values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from fencepost.coordinator.codec.framing import KAFKA_MAX_FRAME_BYTES
from fencepost.coordinator.config import (
    NO_AUTHORIZER,
    REPLICA_SELECTOR,
    GroupCoordinatorConfig,
    NewTopicConfig,
    ReplicaSelector,
    SecurityConfig,
    replica_selector_from,
    setting_names,
    unknown_setting,
)
from fencepost.coordinator.protocol.administration import ConfigType
from fencepost.coordinator.protocol.errors import ErrorCode, FencepostError, ProtocolError
from fencepost.coordinator.server import listener_config
from fencepost.coordinator.server.buffers import MAX_QUEUED_REQUEST_BYTES
from fencepost.coordinator.server.logs import MAX_BATCH_BYTES

_LARGEST = {ConfigType.INT: 2**31 - 1, ConfigType.LONG: 2**63 - 1}
_INT_MAX, _LONG_MAX = _LARGEST.values()
_Read = Callable[[str], str]


class TopicSetting(NamedTuple):
    """One setting. `read` takes a value without spaces around it, and returns it in Kafka's form.

    It raises a ValueError with Kafka's message.
    """

    default: str
    config_type: ConfigType
    read: _Read
    broker: str = ""
    """The broker's setting that a topic inherits. Empty if it inherits none, or one of `TIME_SETTINGS`."""


_WHOLE = re.compile("[+-]?[0-9]{1,1000}")
"""Nothing longer is in any range, and Python refuses to convert some thousand digits."""
_DECIMAL = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)[fd]?", re.IGNORECASE)
"""A number as Java reads it: its type may follow, and `1_0` is not a number."""
_REPLICAS = re.compile("(?:[0-9]+:[0-9]+)?")


def _within(number: float, low: int, high: int) -> str:
    if number < low:
        raise ValueError(f"Value must be at least {low}")
    if number > high:
        raise ValueError(f"Value must be no more than {high}")
    return str(number)


def _whole(default: int, low: int, high: int, config_type: ConfigType, broker: str = "") -> TopicSetting:
    largest = _LARGEST[config_type]

    def read(text: str) -> str:
        if not _WHOLE.fullmatch(text) or not -largest - 1 <= int(text) <= largest:
            raise ValueError(f"Not a number of type {config_type.name}")
        return _within(int(text), low, high)

    return TopicSetting(str(default), config_type, read, broker)


def _int(default: int, low: int = 0, high: int = _INT_MAX, broker: str = "") -> TopicSetting:
    return _whole(default, low, high, ConfigType.INT, broker)


def _long(default: int, low: int = 0, broker: str = "") -> TopicSetting:
    return _whole(default, low, _LONG_MAX, ConfigType.LONG, broker)


def _gzip_level(text: str) -> str:
    level = _int(-1, -_INT_MAX).read(text)
    if level != "-1" and not 1 <= int(level) <= 9:
        raise ValueError("Value must be between 1 and 9 or equal to -1")
    return level


def _ratio(text: str) -> str:
    found = _DECIMAL.fullmatch(text)
    if found is None:
        raise ValueError("Not a number of type DOUBLE")
    return _within(float(found[1]), 0, 1)


def _flag(text: str) -> str:
    if text.lower() not in {"true", "false"}:
        raise ValueError("Expected value to be either true or false")
    return text.lower()


def _no_tiers(text: str) -> str:
    if _flag(text) == "true":
        raise ValueError(
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote "
            "log storage."
        )
    return "false"


def _one_of(*words: str) -> _Read:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"String must be one of: {', '.join(words)}")
        return text

    return read


def _elements(text: str) -> tuple[str, ...]:
    """Return each element once, in the order of the text."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(","))) if text else ()


def _policies(text: str) -> str:
    known = _one_of("compact", "delete")
    policies = _elements(text)
    if "" in policies:
        raise ValueError("values must not be empty")
    return ",".join(map(known, policies))


def _throttled(text: str) -> str:
    replicas = [part.strip() for part in text.split(",")]
    if "".join(replicas) != "*" and not all(map(_REPLICAS.fullmatch, replicas)):
        raise ValueError("expected the literal '*' or a list of [partitionId]:[brokerId]")
    return ",".join(replicas)


_COMPRESSIONS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")

TOPIC_SETTINGS: Mapping[str, TopicSetting] = {
    "cleanup.policy": TopicSetting("delete", ConfigType.LIST, _policies, broker="log.cleanup.policy"),
    "compression.gzip.level": TopicSetting(
        "-1", ConfigType.INT, _gzip_level, broker="compression.gzip.level"
    ),
    "compression.lz4.level": _int(9, 1, 17, broker="compression.lz4.level"),
    "compression.type": TopicSetting(
        "producer", ConfigType.STRING, _one_of(*_COMPRESSIONS), broker="compression.type"
    ),
    "compression.zstd.level": _int(3, -131_072, 22, broker="compression.zstd.level"),
    "delete.retention.ms": _long(86_400_000, broker="log.cleaner.delete.retention.ms"),
    "file.delete.delay.ms": _long(60_000, broker="log.segment.delete.delay.ms"),
    "flush.messages": _long(_LONG_MAX, 1, broker="log.flush.interval.messages"),
    "flush.ms": _long(_LONG_MAX),
    "follower.replication.throttled.replicas": TopicSetting("", ConfigType.LIST, _throttled),
    "index.interval.bytes": _int(4_096, broker="log.index.interval.bytes"),
    "leader.replication.throttled.replicas": TopicSetting("", ConfigType.LIST, _throttled),
    "local.retention.bytes": _long(-2, -2, broker="log.local.retention.bytes"),
    "local.retention.ms": _long(-2, -2, broker="log.local.retention.ms"),
    "max.compaction.lag.ms": _long(_LONG_MAX, 1, broker="log.cleaner.max.compaction.lag.ms"),
    "max.message.bytes": _int(MAX_BATCH_BYTES, broker="message.max.bytes"),
    "message.timestamp.after.max.ms": _long(3_600_000, broker="log.message.timestamp.after.max.ms"),
    "message.timestamp.before.max.ms": _long(_LONG_MAX, broker="log.message.timestamp.before.max.ms"),
    "message.timestamp.type": TopicSetting(
        "CreateTime",
        ConfigType.STRING,
        _one_of("CreateTime", "LogAppendTime"),
        broker="log.message.timestamp.type",
    ),
    "min.cleanable.dirty.ratio": TopicSetting(
        "0.5", ConfigType.DOUBLE, _ratio, broker="log.cleaner.min.cleanable.ratio"
    ),
    "min.compaction.lag.ms": _long(0, broker="log.cleaner.min.compaction.lag.ms"),
    "min.insync.replicas": _int(1, 1, broker="min.insync.replicas"),
    "preallocate": TopicSetting("false", ConfigType.BOOLEAN, _flag, broker="log.preallocate"),
    "remote.log.copy.disable": TopicSetting("false", ConfigType.BOOLEAN, _flag),
    "remote.log.delete.on.disable": TopicSetting("false", ConfigType.BOOLEAN, _flag),
    "remote.storage.enable": TopicSetting("false", ConfigType.BOOLEAN, _no_tiers),
    "retention.bytes": _long(-1, -_LONG_MAX - 1, broker="log.retention.bytes"),
    "retention.ms": _long(-1, -1),
    "segment.bytes": _int(1_073_741_824, 1_048_576, broker="log.segment.bytes"),
    "segment.index.bytes": _int(10_485_760, 4, broker="log.index.size.max.bytes"),
    "segment.jitter.ms": _long(0),
    "segment.ms": _long(604_800_000, 1),
    "unclean.leader.election.enable": TopicSetting(
        "false", ConfigType.BOOLEAN, _flag, broker="unclean.leader.election.enable"
    ),
}
"""By name, sorted (Kafka 4.3, Topic Configs).

Settings for files, replicas and compression have no effect here. Records are only removed if a topic says so,
so the default of `retention.ms` is not Kafka's.
"""

BROKER_SETTINGS: Mapping[str, str] = {
    name: setting.broker for name, setting in TOPIC_SETTINGS.items() if setting.broker
}
"""The broker's setting that a topic inherits, by the topic's setting; `TIME_SETTINGS` has the others."""


class TimeSetting(NamedTuple):
    """A broker's setting that a topic inherits as milliseconds."""

    topic_setting: str
    unit_ms: int
    config_type: ConfigType
    read: _Read


def _retention(config_type: ConfigType) -> _Read:
    def read(text: str) -> str:
        value = _whole(0, -_LARGEST[config_type] - 1, _LARGEST[config_type], config_type).read(text)
        if value == "0":
            raise ValueError("must be unlimited (-1) or, equal or greater than 1")
        return value if int(value) > 0 else "-1"

    return read


TIME_SETTINGS: Mapping[str, TimeSetting] = {
    "log.retention.ms": TimeSetting("retention.ms", 1, ConfigType.LONG, _retention(ConfigType.LONG)),
    "log.retention.minutes": TimeSetting("retention.ms", 60_000, ConfigType.INT, _retention(ConfigType.INT)),
    "log.retention.hours": TimeSetting("retention.ms", 3_600_000, ConfigType.INT, _retention(ConfigType.INT)),
    "log.roll.ms": TimeSetting("segment.ms", 1, ConfigType.LONG, _long(0, 1).read),
    "log.roll.hours": TimeSetting("segment.ms", 3_600_000, ConfigType.INT, _int(0, 1).read),
    "log.roll.jitter.ms": TimeSetting("segment.jitter.ms", 1, ConfigType.LONG, _long(0).read),
    "log.roll.jitter.hours": TimeSetting("segment.jitter.ms", 3_600_000, ConfigType.INT, _int(0).read),
    "log.flush.interval.ms": TimeSetting("flush.ms", 1, ConfigType.LONG, _long(0).read),
    "log.flush.scheduler.interval.ms": TimeSetting("flush.ms", 1, ConfigType.LONG, _long(0).read),
}
"""These settings by name. Of those that stand for one setting of a topic, the first that is set holds."""


class TopicDefaults:
    """The values that topics without settings of their own inherit from the broker's properties.

    `properties` has the broker's settings by name; they are read as Kafka reads them.
    :raises FencepostError: for a value that Kafka would refuse.
    """

    def __init__(self, properties: Mapping[str, object] | None = None) -> None:
        self.static: dict[str, str] = {}
        """The broker's settings that were set to another value than the default, by their names."""
        self._inherited: dict[str, str] = {}
        given = dict(properties or {})
        for name, topic_setting in _INHERITED.items():
            if name not in given:
                continue
            time = TIME_SETTINGS.get(name)
            setting = TOPIC_SETTINGS[topic_setting]
            value = _read_property(name, given.pop(name), setting.read if time is None else time.read)
            if time is None and value == setting.default:
                continue
            self.static[name] = value
            if time is not None and value != "-1":
                value = str(int(value) * time.unit_ms)
            self._inherited.setdefault(topic_setting, value)
        assert not given, given
        least, most = (int(self.setting_of({}, f"{which}.compaction.lag.ms")) for which in ("min", "max"))
        if least > most:
            raise FencepostError(
                f"log.cleaner.min.compaction.lag.ms {least} must be at most"
                f" log.cleaner.max.compaction.lag.ms {most}"
            )

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of the broker's settings that topics inherit."""
        return tuple(_INHERITED)

    @classmethod
    def taken_from(cls, properties: dict[str, Any]) -> TopicDefaults:
        """Remove these settings from `properties` and return them.

        :raises FencepostError: for a value that Kafka would refuse.
        """
        return cls({name: properties.pop(name) for name in _INHERITED if name in properties})

    def value_of(self, topic_setting: str) -> str:
        """Return the value of a setting for a topic that does not set it."""
        return self._inherited.get(topic_setting, TOPIC_SETTINGS[topic_setting].default)

    def setting_of(self, configs: Mapping[str, str], topic_setting: str) -> str:
        """Return the value of a setting for a topic on which these settings were set."""
        value = configs.get(topic_setting)
        return self.value_of(topic_setting) if value is None else value

    def inherits(self, topic_settings: Iterable[str]) -> bool:
        """Return true if the broker's properties change one of these settings of topics."""
        return any(name in self._inherited for name in topic_settings)


_INHERITED: Mapping[str, str] = {
    **{broker_name: topic_setting for topic_setting, broker_name in BROKER_SETTINGS.items()},
    **{name: setting.topic_setting for name, setting in TIME_SETTINGS.items()},
}
"""The topic's setting by the broker's setting from which it inherits."""


def _read_property(name: str, value: object, read: _Read) -> str:
    if isinstance(value, bool):
        value = str(value).lower()
    elif not isinstance(value, str | int | float):
        raise FencepostError(f"{name}: {value!r}: expected text, a number, true or false")
    try:
        return read(str(value).strip())
    except ValueError as error:
        raise FencepostError(f"{name}: {value!r}: {error}") from None


KAFKA_DEFAULTS = TopicDefaults()
"""The defaults of a broker whose properties say nothing about topics."""


def read_topic_configs(
    configs: Mapping[str, str], defaults: TopicDefaults = KAFKA_DEFAULTS
) -> dict[str, str]:
    """Return these settings in Kafka's form: lists and numbers without spaces, True as true.

    `defaults` are the values of settings that are missing.

    :raises ProtocolError: INVALID_CONFIG, with the setting and the problem.
    """
    read = {}
    for name, value in configs.items():
        setting = TOPIC_SETTINGS.get(name)
        if setting is None:
            raise ProtocolError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
        try:
            read[name] = setting.read(value.strip())
        except ValueError as error:
            message = f"Invalid value {value} for configuration {name}: {error}"
            raise ProtocolError(ErrorCode.INVALID_CONFIG, message) from None
    least, most = (defaults.setting_of(read, f"{which}.compaction.lag.ms") for which in ("min", "max"))
    if int(least) > int(most):
        message = (
            f"conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})"
        )
        raise ProtocolError(ErrorCode.INVALID_CONFIG, message)
    return read


class BrokerConfig(NamedTuple):
    """All that a broker's properties say."""

    groups: GroupCoordinatorConfig
    new_topics: NewTopicConfig
    topic_defaults: TopicDefaults
    replica_selector: ReplicaSelector | None = None
    listeners: listener_config.ListenerConfig = listener_config.NO_LISTENERS
    queued_max_request_bytes: int = MAX_QUEUED_REQUEST_BYTES
    security: SecurityConfig = NO_AUTHORIZER

    @classmethod
    def from_properties(cls, properties: Mapping[str, object]) -> BrokerConfig:
        """Return the configuration that these properties describe; values are text or already typed.

        :raises FencepostError: for a name that does not exist, a value of the wrong type, one out of its
            range, or values that contradict each other.
        """
        known = (
            *setting_names(GroupCoordinatorConfig),
            *setting_names(NewTopicConfig),
            *setting_names(SecurityConfig),
            *TopicDefaults.names(),
            REPLICA_SELECTOR,
            *listener_config.LISTENER_SETTINGS,
            QUEUED_MAX_REQUEST_BYTES,
        )
        left = dict(properties)
        listeners = listener_config.ListenerConfig.taken_from(left)
        for name in left:
            if name not in known:
                raise unknown_setting(name, known)
        new_topics, topic_defaults = NewTopicConfig.taken_from(left), TopicDefaults.taken_from(left)
        selector, queued = replica_selector_from(left), _queued_bytes_from(left)
        security = SecurityConfig.taken_from(left)
        groups = GroupCoordinatorConfig.from_properties(left)
        return cls(groups, new_topics, topic_defaults, selector, listeners, queued, security)

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of `Brokers` by their names, except the configuration of groups."""
        return {name: value for name, value in self._asdict().items() if name != "groups"}


QUEUED_MAX_REQUEST_BYTES = "queued.max.request.bytes"


def _queued_bytes_from(properties: dict[str, Any]) -> int:
    """Remove `queued.max.request.bytes` from these properties, and return it. There is no limit up to 0."""
    given = properties.pop(QUEUED_MAX_REQUEST_BYTES, MAX_QUEUED_REQUEST_BYTES)
    value = int(_read_property(QUEUED_MAX_REQUEST_BYTES, given, _long(-1, -_LONG_MAX - 1).read))
    if 0 < value < KAFKA_MAX_FRAME_BYTES:
        raise FencepostError(
            f"{QUEUED_MAX_REQUEST_BYTES}: {given!r}: expected at least {KAFKA_MAX_FRAME_BYTES} "
            "(socket.request.max.bytes), or -1 for no limit"
        )
    return value
