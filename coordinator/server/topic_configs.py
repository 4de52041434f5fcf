"""The settings of topics: Kafka's names, types and defaults, and how it reads what is written."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from fencepost.coordinator.protocol.administration import ConfigType
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.server.logs import MAX_BATCH_BYTES

_LARGEST = {ConfigType.INT: 2**31 - 1, ConfigType.LONG: 2**63 - 1}
_INT_MAX, _LONG_MAX = _LARGEST.values()
_Read = Callable[[str], str]


class TopicSetting(NamedTuple):
    """One setting. `read` takes a value without spaces around it, and answers it as Kafka tells it.

    It raises a ValueError that says in Kafka's words what is wrong.
    """

    default: str
    config_type: ConfigType
    read: _Read


_WHOLE = re.compile("[+-]?[0-9]{1,1000}")
"""Nothing longer is in any range, and Python refuses to convert some thousand digits."""
_DECIMAL = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)[fd]?", re.IGNORECASE)
"""As Java reads it: its type may follow, and `1_0` is none."""
_REPLICAS = re.compile("(?:[0-9]+:[0-9]+)?")


def _within(number: float, low: int, high: int) -> str:
    if number < low:
        raise ValueError(f"Value must be at least {low}")
    if number > high:
        raise ValueError(f"Value must be no more than {high}")
    return str(number)


def _whole(default: int, low: int, high: int, config_type: ConfigType) -> TopicSetting:
    largest = _LARGEST[config_type]

    def read(text: str) -> str:
        if not _WHOLE.fullmatch(text) or not -largest - 1 <= int(text) <= largest:
            raise ValueError(f"Not a number of type {config_type.name}")
        return _within(int(text), low, high)

    return TopicSetting(str(default), config_type, read)


def _int(default: int, low: int = 0, high: int = _INT_MAX) -> TopicSetting:
    return _whole(default, low, high, ConfigType.INT)


def _long(default: int, low: int = 0) -> TopicSetting:
    return _whole(default, low, _LONG_MAX, ConfigType.LONG)


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
    """Each once, in the order of the text."""
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
    "cleanup.policy": TopicSetting("delete", ConfigType.LIST, _policies),
    "compression.gzip.level": TopicSetting("-1", ConfigType.INT, _gzip_level),
    "compression.lz4.level": _int(9, 1, 17),
    "compression.type": TopicSetting("producer", ConfigType.STRING, _one_of(*_COMPRESSIONS)),
    "compression.zstd.level": _int(3, -131_072, 22),
    "delete.retention.ms": _long(86_400_000),
    "file.delete.delay.ms": _long(60_000),
    "flush.messages": _long(_LONG_MAX, 1),
    "flush.ms": _long(_LONG_MAX),
    "follower.replication.throttled.replicas": TopicSetting("", ConfigType.LIST, _throttled),
    "index.interval.bytes": _int(4_096),
    "leader.replication.throttled.replicas": TopicSetting("", ConfigType.LIST, _throttled),
    "local.retention.bytes": _long(-2, -2),
    "local.retention.ms": _long(-2, -2),
    "max.compaction.lag.ms": _long(_LONG_MAX, 1),
    "max.message.bytes": _int(MAX_BATCH_BYTES),
    "message.timestamp.after.max.ms": _long(3_600_000),
    "message.timestamp.before.max.ms": _long(_LONG_MAX),
    "message.timestamp.type": TopicSetting(
        "CreateTime", ConfigType.STRING, _one_of("CreateTime", "LogAppendTime")
    ),
    "min.cleanable.dirty.ratio": TopicSetting("0.5", ConfigType.DOUBLE, _ratio),
    "min.compaction.lag.ms": _long(0),
    "min.insync.replicas": _int(1, 1),
    "preallocate": TopicSetting("false", ConfigType.BOOLEAN, _flag),
    "remote.log.copy.disable": TopicSetting("false", ConfigType.BOOLEAN, _flag),
    "remote.log.delete.on.disable": TopicSetting("false", ConfigType.BOOLEAN, _flag),
    "remote.storage.enable": TopicSetting("false", ConfigType.BOOLEAN, _no_tiers),
    "retention.bytes": _long(-1, -_LONG_MAX - 1),
    "retention.ms": _long(-1, -1),
    "segment.bytes": _int(1_073_741_824, 1_048_576),
    "segment.index.bytes": _int(10_485_760, 4),
    "segment.jitter.ms": _long(0),
    "segment.ms": _long(604_800_000, 1),
    "unclean.leader.election.enable": TopicSetting("false", ConfigType.BOOLEAN, _flag),
}
"""By name, sorted (Kafka 4.3, Topic Configs).

What they say about files, replicas and compression has no effect here. Nothing is removed unless a topic says
so, so the default of `retention.ms` is not Kafka's.
"""

BROKER_SETTINGS: Mapping[str, str] = {
    "cleanup.policy": "log.cleanup.policy",
    "compression.gzip.level": "compression.gzip.level",
    "compression.lz4.level": "compression.lz4.level",
    "compression.type": "compression.type",
    "compression.zstd.level": "compression.zstd.level",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "index.interval.bytes": "log.index.interval.bytes",
    "local.retention.bytes": "log.local.retention.bytes",
    "local.retention.ms": "log.local.retention.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "min.insync.replicas": "min.insync.replicas",
    "preallocate": "log.preallocate",
    "retention.bytes": "log.retention.bytes",
    "segment.bytes": "log.segment.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
}
"""Which of the brokers' settings holds where a topic has none.

Those that are missing have none, or one without a default: of `log.retention.hours`, which stands in for
`log.retention.ms`, Kafka tells nothing.
"""


def setting_of(configs: Mapping[str, str], name: str) -> str:
    """A setting's value for a topic on which these were set."""
    return configs.get(name, TOPIC_SETTINGS[name].default)


def read_topic_configs(configs: Mapping[str, str]) -> dict[str, str]:
    """These settings as Kafka tells them: lists and numbers without spaces, True as true.

    :raises ProtocolError: INVALID_CONFIG, with the setting and what is wrong with it.
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
    least, most = (setting_of(read, f"{which}.compaction.lag.ms") for which in ("min", "max"))
    if int(least) > int(most):
        message = (
            f"conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})"
        )
        raise ProtocolError(ErrorCode.INVALID_CONFIG, message)
    return read
