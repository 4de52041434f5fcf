"""Recorded answers of RabbitMQ's coordinator of single active consumers, replayed on ours.

`{"seed", "steps": [{"command", "reply", "effects", "state"}]}`: each sequence begins with no groups, and no
time passes in it (a timer's end is the command `timeout`). Connections are written `NAME@NODE`. Effects are
compared as multisets, since RabbitMQ orders those of several groups as its maps happen to; members of a group
in their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import msgspec

from fencepost.coordinator.host import CoordinatorHost
from fencepost.coordinator.journal.memory import SacMemoryJournal
from fencepost.coordinator.protocol import sac
from fencepost.coordinator.protocol.sac_records import SacGroupKey, SacGroupValue
from fencepost.coordinator.sac.coordinator import SacCoordinator, SacInput
from fencepost.coordinator.sac.state import SacState

_Document: TypeAlias = dict[str, Any]


class _Command(msgspec.Struct, forbid_unknown_fields=True, tag_field="op"):
    """One input, as the file has it."""


class _Register(_Command, tag="register"):
    pi: int
    conn: str
    sub: int
    stream: str
    name: str

    def event(self) -> SacInput:
        return sac.RegisterConsumer(
            stream=self.stream,
            consumer_name=self.name,
            connection=self.conn,
            subscription_id=self.sub,
            partition_index=self.pi,
            owner=self.conn,
        )


class _Unregister(_Command, tag="unregister"):
    conn: str
    sub: int
    stream: str
    name: str

    def event(self) -> SacInput:
        return sac.UnregisterConsumer(
            stream=self.stream, consumer_name=self.name, connection=self.conn, subscription_id=self.sub
        )


class _Activate(_Command, tag="activate"):
    stream: str
    name: str

    def event(self) -> SacInput:
        return sac.ActivateConsumer(stream=self.stream, consumer_name=self.name)


class _Evaluate(_Command, tag="evaluate"):
    stream: str
    name: str
    dead: tuple[str, ...]

    def event(self) -> SacInput:
        return sac.EvaluateGroup(stream=self.stream, consumer_name=self.name, dead=self.dead)


class _Down(_Command, tag="down"):
    conn: str
    reason: str

    def event(self) -> SacInput:
        return sac.ConnectionDown(self.conn, self.reason)


class _Timeout(_Command, tag="timeout"):
    conn: str

    def event(self) -> SacInput:
        return sac.DisconnectedTimeout(self.conn)


class _Reconnected(_Command, tag="reconnected"):
    conn: str

    def event(self) -> SacInput:
        return sac.ConnectionReconnected(self.conn)


class _NodeUp(_Command, tag="nodeup"):
    node: str

    def event(self) -> SacInput:
        return sac.NodeUp(self.node)


class _Purge(_Command, tag="purge"):
    nodes: tuple[str, ...]

    def event(self) -> SacInput:
        return sac.PurgeNodes(self.nodes)


class _Conf(_Command, tag="conf"):
    conf: dict[str, int]

    def event(self) -> SacInput:
        return sac.UpdateConfiguration(self.conf)


class _Step(msgspec.Struct, forbid_unknown_fields=True):
    command: (
        _Register
        | _Unregister
        | _Activate
        | _Evaluate
        | _Down
        | _Timeout
        | _Reconnected
        | _NodeUp
        | _Purge
        | _Conf
    )
    reply: str | _Document
    effects: list[_Document]
    state: _Document


class SacSequence(msgspec.Struct, forbid_unknown_fields=True):
    """One line of a file."""

    seed: int
    steps: list[_Step]


FORMAT = "a sequence of single active consumers {seed, steps: [{command, reply, effects, state}]}"


def check(sequence: SacSequence) -> Iterator[tuple[int, str, bool]]:
    """Step, rule and whether our answer keeps it; nothing behind the first step that differs."""
    host = CoordinatorHost(SacCoordinator(), SacMemoryJournal())
    for index, step in enumerate(sequence.steps):
        outcome = host.process(step.command.event())
        verdicts = {
            "sac.reply": _reply(outcome.reply) == step.reply,
            "sac.effects": _sorted(map(_effect, outcome.effects)) == _sorted(step.effects),
            "sac.state": _state(host.coordinator.state) == _canonical(step.state),
        }
        for rule, holds in verdicts.items():
            yield index, rule, holds
        if not all(verdicts.values()):
            return


def _reply(reply: sac.SacReply | None) -> object:
    if reply is None or (reply.error is None and reply.is_active is None):
        return "ok"
    return {"ok": reply.is_active} if reply.error is None else {"error": str(reply.error)}


def _effect(effect: sac.SacEffect) -> _Document:
    match effect:
        case sac.NotifyConsumer():
            document: _Document = {
                "e": "send",
                "conn": effect.connection,
                "sub": effect.subscription_id,
                "stream": effect.stream,
                "name": effect.consumer_name,
                "active": effect.active,
            }
            return document | ({"stepping_down": True} if effect.stepping_down else {})
        case sac.CheckConnection():
            return {"e": "check_connection", "conn": effect.connection}
        case sac.MonitorConnection():
            return {"e": "monitor", "conn": effect.connection}
        case sac.DemonitorConnection():
            return {"e": "demonitor", "conn": effect.connection}
        case sac.MonitorNode():
            return {"e": "monitor_node", "node": effect.node}
        case sac.StartTimer():
            return {"e": "timer", "conn": effect.connection, "ms": effect.delay_ms}


def _sorted(effects: Iterable[_Document]) -> list[bytes]:
    return sorted(msgspec.json.encode(effect, order="sorted") for effect in effects)


def _state(state: SacState) -> _Document:
    return {
        "groups": [_group(key, group) for key, group in sorted(state.groups.items())],
        "conns": {
            connection: [[key.vhost, key.stream, key.consumer_name] for key in keys]
            for connection, keys in state.index().items()
        },
        "conf": state.conf,
    }


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
    """The recorded state with our words, and with an order where it has none."""
    for group in state["groups"]:
        for consumer in group["consumers"]:
            consumer["cnty"] = sac.Connectivity(consumer["cnty"])
    return {
        **state,
        "groups": sorted(state["groups"], key=lambda group: (group["vh"], group["stream"], group["name"])),
        "conns": {connection: sorted(groups) for connection, groups in state["conns"].items()},
    }
