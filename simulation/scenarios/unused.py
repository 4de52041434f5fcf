"""Settings of a protocol that no member of a scenario speaks: Kafka's consumers refuse them as well.

A file may have them, for runs with another `group.protocol`. On the command line, a setting is expected to
have an effect.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from fencepost.simulation.scenarios.kinds import AnyScenario
from fencepost.simulation.scenarios.positions import Path

_OF_GROUP: Final = {
    "assignor": "consumer",
    "partition_assignment_strategy": "classic",
    "session_timeout": "classic",
    "heartbeat_interval": "classic",
    "metadata_max_age": "classic",
}
_OF_CONFIG: Final = {
    "group.consumer.": "consumer",
    "group.streams.": "streams",
    "group.min.session.timeout.ms": "classic",
    "group.max.session.timeout.ms": "classic",
    "group.initial.rebalance.delay.ms": "classic",
    "group.max.size": "classic",
}
"""Protocols of settings in `config`, by the beginning of their names."""
_INSTEAD: Final = {
    "consumer": {
        "partition_assignment_strategy": "group.assignor",
        "session_timeout": "config.group.consumer.session.timeout.ms",
        "heartbeat_interval": "config.group.consumer.heartbeat.interval.ms",
    },
    "streams": {
        "session_timeout": "config.group.streams.session.timeout.ms",
        "heartbeat_interval": "config.group.streams.heartbeat.interval.ms",
    },
    "classic": {
        "assignor": "group.partition_assignment_strategy",
        "group.consumer.session.timeout.ms": "group.session_timeout",
        "group.consumer.heartbeat.interval.ms": "group.heartbeat_interval",
        "group.streams.session.timeout.ms": "group.session_timeout",
        "group.streams.heartbeat.interval.ms": "group.heartbeat_interval",
    },
}


def why_unused(scenario: AnyScenario, path: Path) -> str | None:
    """Return why the setting at this path has no effect in the scenario, and which one has; None if it has
    one."""
    spoken: Collection[str] = scenario.protocols
    name = str(path[-1]) if len(path) == 2 else ""
    protocol = _protocol_of(path[0], name) if name else None
    if protocol is None or not spoken or protocol in spoken:
        return None
    one = min(spoken)
    instead = _INSTEAD[one].get(name)
    theirs = f"; theirs is {instead}" if instead else ""
    return f"has no effect: it is for members of the {protocol} protocol, and these speak {one}{theirs}"


def _protocol_of(table: object, name: str) -> str | None:
    if table == "group":
        return _OF_GROUP.get(name)
    if table == "config":
        return next((protocol for begin, protocol in _OF_CONFIG.items() if name.startswith(begin)), None)
    return None
