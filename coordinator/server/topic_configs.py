"""The settings of topics: Kafka's names, types and defaults, and what may be written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from fencepost.coordinator.protocol.administration import ConfigType
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.server.logs import MAX_BATCH_BYTES

_INT_MAX, _LONG_MAX = 2**31 - 1, 2**63 - 1
_Check = Callable[[str], bool]


class TopicSetting(NamedTuple):
    """One setting. `allows` says whether a value may be written, in text."""

    default: str
    config_type: ConfigType
    allows: _Check


_MOST_DIGITS = 1_000
"""Nothing that long is in any range, and Python refuses to convert some thousand."""


def _whole(low: int, high: int) -> _Check:
    def check(text: str) -> bool:
        digits = text.removeprefix("-")
        if not digits.isascii() or not digits.isdecimal() or len(digits) > _MOST_DIGITS:
            return False
        return low <= int(text) <= high

    return check


def _one_of(*words: str) -> _Check:
    return lambda text: text in words


def _some_of(*words: str) -> _Check:
    return lambda text: all(part.strip() in words for part in text.split(",")) if text else True


def _ratio(text: str) -> bool:
    try:
        return 0 <= float(text) <= 1
    except ValueError:
        return False


def _int(default: int, low: int = 0, high: int = _INT_MAX) -> TopicSetting:
    return TopicSetting(str(default), ConfigType.INT, _whole(low, high))


def _long(default: int, low: int = 0) -> TopicSetting:
    return TopicSetting(str(default), ConfigType.LONG, _whole(low, _LONG_MAX))


def _flag(default: str) -> TopicSetting:
    return TopicSetting(default, ConfigType.BOOLEAN, _one_of("true", "false"))


def _list(default: str, *words: str) -> TopicSetting:
    return TopicSetting(default, ConfigType.LIST, _some_of(*words) if words else lambda text: True)


_COMPRESSIONS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")

TOPIC_SETTINGS: Mapping[str, TopicSetting] = {
    "cleanup.policy": _list("delete", "compact", "delete"),
    "compression.gzip.level": _int(-1, -1, 9),
    "compression.lz4.level": _int(9, 1, 17),
    "compression.type": TopicSetting("producer", ConfigType.STRING, _one_of(*_COMPRESSIONS)),
    "compression.zstd.level": _int(3, -131_072, 22),
    "delete.retention.ms": _long(86_400_000),
    "file.delete.delay.ms": _long(60_000),
    "flush.messages": _long(_LONG_MAX, 1),
    "flush.ms": _long(_LONG_MAX),
    "follower.replication.throttled.replicas": _list(""),
    "index.interval.bytes": _int(4_096),
    "leader.replication.throttled.replicas": _list(""),
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
    "preallocate": _flag("false"),
    "remote.log.copy.disable": _flag("false"),
    "remote.log.delete.on.disable": _flag("false"),
    "remote.storage.enable": TopicSetting("false", ConfigType.BOOLEAN, _one_of("false")),
    "retention.bytes": _long(-1, -1),
    "retention.ms": _long(-1, -1),
    "segment.bytes": _int(1_073_741_824, 1_048_576),
    "segment.index.bytes": _int(10_485_760, 4),
    "segment.jitter.ms": _long(0),
    "segment.ms": _long(604_800_000, 1),
    "unclean.leader.election.enable": _flag("false"),
}
"""By name, sorted (Kafka 4.3, Topic Configs).

What they say about files, replicas and compression has no effect here. Nothing is removed unless a topic says
so, so the default of `retention.ms` is not Kafka's.
"""


def setting_of(configs: Mapping[str, str], name: str) -> str:
    """A setting's value for a topic on which these were set."""
    return configs.get(name, TOPIC_SETTINGS[name].default)


def check_topic_configs(configs: Mapping[str, str]) -> None:
    """Refuse what Kafka refuses.

    :raises ProtocolError: INVALID_CONFIG, with the setting and what is wrong with it.
    """
    for name, value in configs.items():
        setting = TOPIC_SETTINGS.get(name)
        if setting is None:
            raise ProtocolError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
        if not setting.allows(value):
            raise ProtocolError(
                ErrorCode.INVALID_CONFIG,
                f"Invalid value {value} for configuration {name}: no {setting.config_type.name} in its range",
            )
