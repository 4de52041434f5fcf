"""Recorded responses of RabbitMQ's coordinator of single active consumers, replayed on ours.

`{"seed", "steps": [{"command", "reply", "effects", "state"}]}`: each sequence begins with no groups, and no
time passes in it (a timer's end is the command `timeout`). Connections are written `NAME@NODE`. Effects are
compared as multisets, since RabbitMQ orders those of several groups as its maps happen to; members of a group
in their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from fencepost.coordinator.host import CoordinatorHost
from fencepost.coordinator.journal.memory import SacMemoryJournal
from fencepost.coordinator.protocol import sac
from fencepost.coordinator.protocol.sac_records import SacGroupKey, SacGroupValue
from fencepost.coordinator.sac.coordinator import SacCoordinator, SacInput

_Document: TypeAlias = dict[str, Any]


_COMMANDS: Final[Mapping[str, type[SacInput]]] = {
    "register": sac.RegisterConsumer,
    "unregister": sac.UnregisterConsumer,
    "activate": sac.ActivateConsumer,
    "evaluate": sac.EvaluateGroup,
    "down": sac.ConnectionDown,
    "timeout": sac.DisconnectedTimeout,
    "reconnected": sac.ConnectionReconnected,
    "nodeup": sac.NodeUp,
    "purge": sac.PurgeNodes,
    "conf": sac.UpdateConfiguration,
}
_EFFECTS: Final[Mapping[type[sac.SacEffect], str]] = {
    sac.NotifyConsumer: "send",
    sac.CheckConnection: "check_connection",
    sac.MonitorConnection: "monitor",
    sac.DemonitorConnection: "demonitor",
    sac.MonitorNode: "monitor_node",
    sac.StartTimer: "timer",
}
_FIELDS: Final[Mapping[str, str]] = {
    "conn": "connection",
    "sub": "subscription_id",
    "pi": "partition_index",
    "name": "consumer_name",
    "ms": "delay_ms",
}
"""Our names of fields that have other names in the files."""
_RECORDED: Final = {ours: name for name, ours in _FIELDS.items()}
_RULES: Final = ("sac.reply", "sac.effects", "sac.state")
_IMPLIED: Final = frozenset({"owner", "vhost"})
"""Fields of commands that the files leave out."""


class SacVectorStep(msgspec.Struct, forbid_unknown_fields=True):
    """One command, and what RabbitMQ made of it."""

    command: _Document
    reply: str | _Document
    effects: list[_Document]
    state: _Document

    def __post_init__(self) -> None:
        self.event()

    def event(self) -> SacInput:
        """Return the command as the coordinator takes it.

        :raises ValueError: if it is no command.
        :raises msgspec.ValidationError: if a value is of another type.
        """
        fields = {_FIELDS.get(name, name): value for name, value in self.command.items()}
        kind = _COMMANDS.get(fields.pop("op", ""))
        if kind is None or fields.keys() != set(kind.__struct_fields__) - _IMPLIED:
            raise ValueError(f"no such command: {self.command}")
        if kind is sac.RegisterConsumer:
            fields["owner"] = fields["connection"]
        return msgspec.convert(fields, kind)


class SacSequence(msgspec.Struct, forbid_unknown_fields=True):
    """One line of a file."""

    seed: int
    steps: list[SacVectorStep]


FORMAT = "a sequence of single active consumers {seed, steps: [{command, reply, effects, state}]}"


def check(sequence: SacSequence) -> Iterator[tuple[int, str, bool]]:
    """Yield step, rule, and true if our response keeps it; nothing after the first step that differs."""
    host = CoordinatorHost(SacCoordinator(), SacMemoryJournal())
    for index, step in enumerate(sequence.steps):
        outcome, state = host.process(step.event()), host.coordinator.state
        got = in_words(outcome.reply, outcome.effects, state.groups, state.index(), state.conf)
        verdicts = [each == right for each, right in zip(got, recorded(step), strict=True)]
        for rule, holds in zip(_RULES, verdicts, strict=True):
            yield index, rule, holds
        if not all(verdicts):
            return


def in_words(
    reply: sac.SacReply | None,
    effects: Iterable[sac.SacEffect],
    groups: Mapping[SacGroupKey, SacGroupValue],
    connections: Mapping[sac.ConnectionId, Iterable[SacGroupKey]],
    conf: Mapping[str, int],
) -> tuple[object, object, object]:
    """Return a reply, effects and the state after them as the files have them."""
    state = {
        "groups": [_group(key, group) for key, group in sorted(groups.items())],
        "conns": {
            connection: [[key.vhost, key.stream, key.consumer_name] for key in sorted(keys)]
            for connection, keys in connections.items()
        },
        "conf": conf,
    }
    return _reply(reply), _sorted(map(_effect, effects)), state


def recorded(step: SacVectorStep) -> tuple[object, object, object]:
    """Return what RabbitMQ's coordinator replied, asked for, and kept."""
    return step.reply, _sorted(step.effects), _canonical(step.state)


def _reply(reply: sac.SacReply | None) -> object:
    if reply is None or (reply.error is None and reply.is_active is None):
        return "ok"
    return {"ok": reply.is_active} if reply.error is None else {"error": str(reply.error)}


def _effect(effect: sac.SacEffect) -> _Document:
    fields = {_RECORDED.get(name, name): value for name, value in msgspec.structs.asdict(effect).items()}
    if not fields.get("stepping_down"):
        fields.pop("stepping_down", None)
    return {"e": _EFFECTS[type(effect)], **fields}


def _sorted(effects: Iterable[_Document]) -> list[bytes]:
    return sorted(msgspec.json.encode(effect, order="sorted") for effect in effects)


def _group(key: SacGroupKey, group: SacGroupValue) -> _Document:
    return {
        "vh": key.vhost,
        "stream": key.stream,
        "name": key.consumer_name,
        "pi": group.partition_index,
        "consumers": [
            {
                "conn": one.connection,
                "sub": one.subscription_id,
                "owner": one.owner,
                "cnty": one.status.connectivity,
                "acty": str(one.status.activity),
            }
            for one in group.consumers
        ],
    }


def _canonical(state: _Document) -> _Document:
    """Return the recorded state with our words, and with an order where it has none."""
    for group in state["groups"]:
        for consumer in group["consumers"]:
            consumer["cnty"] = sac.Connectivity(consumer["cnty"])
    return {
        **state,
        "groups": sorted(state["groups"], key=lambda group: (group["vh"], group["stream"], group["name"])),
        "conns": {connection: sorted(groups) for connection, groups in state["conns"].items()},
    }
