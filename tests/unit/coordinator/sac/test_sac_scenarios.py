"""Worked scenarios of single active consumers, step by step: reply, members in their order, effects.

A line that begins with `=` opens one: title, partition index, and the members that it starts with. The others
are input, reply, members after it, effects. `k1@a/0 C.w` is subscription 0 of connection k1 on node a,
connected and waiting (D is disconnected, F forgotten; a active, d deactivating). What is watched is told in
the first one only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from fencepost.coordinator.host import CoordinatorHost
from fencepost.coordinator.journal.memory import SacMemoryJournal
from fencepost.coordinator.protocol import sac
from fencepost.coordinator.protocol.sac import ConsumerStatus
from fencepost.coordinator.protocol.sac_records import SacConsumer, SacGroupKey, SacGroupValue, SacRecord
from fencepost.coordinator.sac.coordinator import SacCoordinator, SacInput

KEY = SacGroupKey("/", "s", "app")
HALVES = {
    "C": "CONNECTED",
    "D": "DISCONNECTED",
    "F": "FORGOTTEN",
    "a": "ACTIVE",
    "w": "WAITING",
    "d": "DEACTIVATING",
}

SCENARIOS = """
= Succession in join order, full effect lists | -1 |
    register k1@a/4 | active | k1@a/4 C.a | monitor(k1@a), node(a), act k1@a/4
    register k2@b/9 | waiting | k1@a/4 C.a, k2@b/9 C.w | monitor(k2@b), node(b)
    register k3@b/2 | waiting | k1@a/4 C.a, k2@b/9 C.w, k3@b/2 C.w | monitor(k3@b), node(b)
    unregister k2@b/9 | ok | k1@a/4 C.a, k3@b/2 C.w | demonitor(k2@b)
    unregister k1@a/4 | ok | k3@b/2 C.a | demonitor(k1@a), act k3@b/2
    unregister k3@b/2 | ok |  | demonitor(k3@b)
= One connection with two members dies | -1 | k1@a/0 C.a, k2@b/0 C.w, k1@a/1 C.w, k3@c/0 C.w
    down k1@a normal | ok | k2@b/0 C.a, k3@c/0 C.w | act k2@b/0
    down k3@c normal | ok | k2@b/0 C.a |
    down k2@b normal | ok |  |
= Two-phase handover on join | 1 |
    register k1@a/0 | active | k1@a/0 C.a | act k1@a/0
    register k2@b/0 | waiting | k1@a/0 C.d, k2@b/0 C.w | step k1@a/0
    activate | ok | k1@a/0 C.w, k2@b/0 C.a | act k2@b/0
    register k3@c/0 | waiting | k1@a/0 C.w, k2@b/0 C.a, k3@c/0 C.w |
= A repeated step-down while the handover is pending | 5 |
    register k1@a/0 | active | k1@a/0 C.a | act k1@a/0
    register k2@a/0 | waiting | k1@a/0 C.d, k2@a/0 C.w | step k1@a/0
    register k3@b/0 | waiting | k1@a/0 C.d, k2@a/0 C.w, k3@b/0 C.w | step k1@a/0
    register k4@b/0 | waiting | k1@a/0 C.d, k2@a/0 C.w, k3@b/0 C.w, k4@b/0 C.w | step k1@a/0
    activate | ok | k1@a/0 C.w, k2@a/0 C.a, k3@b/0 C.w, k4@b/0 C.w | act k2@a/0
    activate | ok | k1@a/0 C.w, k2@a/0 C.a, k3@b/0 C.w, k4@b/0 C.w |
= The index comes back to the member that is stepping down | 9 |
    register k1@a/0 | active | k1@a/0 C.a | act k1@a/0
    register k2@a/0 | waiting | k1@a/0 C.d, k2@a/0 C.w | step k1@a/0
    register k3@b/0 | waiting | k1@a/0 C.d, k2@a/0 C.w, k3@b/0 C.w |
    activate | ok | k1@a/0 C.a, k2@a/0 C.w, k3@b/0 C.w | act k1@a/0
= A waiting member leaves and the index shifts | 2 | k1@a/0 C.w, k2@a/0 C.w, k3@b/0 C.a, k4@b/0 C.w
    unregister k1@a/0 | ok | k2@a/0 C.w, k3@b/0 C.d, k4@b/0 C.w | step k3@b/0
    activate | ok | k2@a/0 C.w, k3@b/0 C.w, k4@b/0 C.a | act k4@b/0
    unregister k4@b/0 | ok | k2@a/0 C.a, k3@b/0 C.w | act k2@a/0
    activate | ok | k2@a/0 C.a, k3@b/0 C.w |
= Active member leaves: promotion without handshake | 2 | k1@a/0 C.w, k2@a/0 C.w, k3@b/0 C.a
    unregister k3@b/0 | ok | k1@a/0 C.a, k2@a/0 C.w | act k1@a/0
    down k1@a normal | ok | k2@a/0 C.a | act k2@a/0
= Stepping-down member dies before answering | 1 | k1@a/0 C.d, k2@b/0 C.w, k3@c/0 C.w
    down k1@a normal | ok | k2@b/0 C.w, k3@c/0 C.a | act k3@c/0
    activate | ok | k2@b/0 C.w, k3@c/0 C.a |
= Active on a lost node blocks, then returns in time | 1 | k1@a/0 C.w, k2@b/0 C.a
    down k2@b noconnection | ok | k1@a/0 C.w, k2@b/0 D.a | timer(k2@b, 60000)
    register k3@a/0 | waiting | k1@a/0 C.w, k2@b/0 D.a, k3@a/0 C.w |
    unregister k1@a/0 | ok | k2@b/0 D.a, k3@a/0 C.w |
    activate | ok | k2@b/0 D.a, k3@a/0 C.w |
    nodeup b | ok | k2@b/0 D.a, k3@a/0 C.w | check k2@b
    reconnected k2@b | ok | k2@b/0 C.d, k3@a/0 C.w | step k2@b/0
    activate | ok | k2@b/0 C.w, k3@a/0 C.a | act k3@a/0
= Waiting member on a lost node: no rebalance | 2 | k1@a/0 C.w, k2@b/0 C.w, k3@c/0 C.a
    down k1@a noconnection | ok | k1@a/0 D.w, k2@b/0 C.w, k3@c/0 C.a | timer(k1@a, 60000)
    register k4@b/0 | waiting | k1@a/0 D.w, k2@b/0 C.w, k3@c/0 C.d, k4@b/0 C.w | step k3@c/0
    activate | ok | k1@a/0 D.w, k2@b/0 C.w, k3@c/0 C.w, k4@b/0 C.a | act k4@b/0
    reconnected k1@a | ok | k1@a/0 C.w, k2@b/0 C.w, k3@c/0 C.w, k4@b/0 C.d | step k4@b/0
= Timer fires on the lost active, simple group | -1 | k1@a/0 C.a, k2@b/0 C.w, k3@b/0 C.w
    down k1@a noconnection | ok | k1@a/0 D.a, k2@b/0 C.w, k3@b/0 C.w | timer(k1@a, 60000)
    timeout k1@a | ok | k1@a/0 F.a, k2@b/0 C.a, k3@b/0 C.w | act k2@b/0
    register k4@c/0 | waiting | k1@a/0 F.a, k2@b/0 C.a, k3@b/0 C.w, k4@c/0 C.w |
= Timer fires on the lost active, super group | 3 | k1@a/0 C.w, k2@b/0 C.a, k3@a/0 C.w
    down k2@b noconnection | ok | k1@a/0 C.w, k2@b/0 D.a, k3@a/0 C.w | timer(k2@b, 60000)
    timeout k2@b | ok | k1@a/0 C.w, k2@b/0 F.a, k3@a/0 C.a | act k3@a/0
    timeout k2@b | ok | k1@a/0 C.w, k2@b/0 F.a, k3@a/0 C.a |
= A forgotten active one returns, another is active | -1 | k1@a/0 F.a, k2@b/0 C.a, k3@b/0 C.w, k1@a/1 F.w
    reconnected k1@a | ok | k1@a/0 C.w, k2@b/0 C.w, k3@b/0 C.w, k1@a/1 C.w | step k1@a/0, step k2@b/0
    activate | ok | k1@a/0 C.a, k2@b/0 C.w, k3@b/0 C.w, k1@a/1 C.w | act k1@a/0
    activate | ok | k1@a/0 C.a, k2@b/0 C.w, k3@b/0 C.w, k1@a/1 C.w |
= A forgotten active one returns, another is disconnected | 0 | k1@a/0 F.a, k1@a/1 F.w, k2@b/0 D.a, k3@c/0 C.w
    reconnected k1@a | ok | k1@a/0 C.w, k1@a/1 F.w, k2@b/0 D.a, k3@c/0 C.w | step k1@a/0
    activate | ok | k1@a/0 C.w, k1@a/1 F.w, k2@b/0 D.a, k3@c/0 C.w |
    timeout k2@b | ok | k1@a/0 C.a, k1@a/1 F.w, k2@b/0 F.a, k3@c/0 C.w | act k1@a/0
    activate | ok | k1@a/0 C.a, k1@a/1 F.w, k2@b/0 F.a, k3@c/0 C.w |
= Stepping-down member's node is lost | 1 | k1@a/0 C.w, k2@b/0 C.d, k3@c/0 C.w
    down k2@b noconnection | ok | k1@a/0 C.w, k2@b/0 D.w, k3@c/0 C.a | timer(k2@b, 60000), act k3@c/0
    reconnected k2@b | ok | k1@a/0 C.w, k2@b/0 C.w, k3@c/0 C.d | step k3@c/0
    activate | ok | k1@a/0 C.w, k2@b/0 C.a, k3@c/0 C.w | act k2@b/0
= A connection that was refused ends while a step-down is pending: nobody is asked again | 1 |
    register k1@a/0 | active | k1@a/0 C.a | act k1@a/0
    register k2@a/0 | waiting | k1@a/0 C.d, k2@a/0 C.w | step k1@a/0
    register k3@b/0 pi=2 | partition_index_conflict | k1@a/0 C.d, k2@a/0 C.w |
    down k3@b normal | ok | k1@a/0 C.d, k2@a/0 C.w |
= Simple group moves its active to the front on a reconnect | -1 | k1@a/0 D.w, k2@b/0 C.a, k3@b/0 C.w
    reconnected k1@a | ok | k2@b/0 C.a, k1@a/0 C.w, k3@b/0 C.w |
    unregister k2@b/0 | ok | k1@a/0 C.a, k3@b/0 C.w | act k1@a/0
= activate on a healthy group: silent demotion | -1 | k1@a/0 C.w, k2@b/0 C.a
    activate | ok | k1@a/0 C.a, k2@b/0 C.w | act k1@a/0
    activate | ok | k1@a/0 C.a, k2@b/0 C.w |
= Errors and no-ops | 1 | k1@a/0 C.a
    register k2@a/0 pi=2 | partition_index_conflict | k1@a/0 C.a |
    unregister k1@a/7 | ok | k1@a/0 C.a |
    unregister k9@c/0 | ok | k1@a/0 C.a |
    register k1@a/0 | active | k1@a/0 C.a |
    evaluate dead=[k1@a] | ok |  |
    activate | not_found |  |
    evaluate dead=[] | not_found |  |
    unregister k1@a/0 | ok |  |
= Stale node purge | -1 | k1@a/0 D.a, k2@b/0 C.w, k3@a/0 D.w, k4@c/0 C.w
    purge a | ok | k2@b/0 C.a, k4@c/0 C.w | act k2@b/0
    purge c,b | ok |  |
= evaluate_group clean-up | 1 | k1@a/0 D.a, k2@b/0 F.w, k3@c/0 C.w, k4@c/0 C.w, k5@b/0 C.w
    evaluate dead=[k3@c] | ok | k4@c/0 C.w, k5@b/0 C.a | act k5@b/0
    evaluate dead=[] | ok | k4@c/0 C.w, k5@b/0 C.a |
= Newcomer in the reconciliation window | -1 | k1@a/0 F.a, k2@b/0 C.a
    reconnected k1@a | ok | k1@a/0 C.w, k2@b/0 C.w | step k1@a/0, step k2@b/0
    register k3@c/0 | active | k1@a/0 C.w, k2@b/0 C.w, k3@c/0 C.a | act k3@c/0
    activate | ok | k1@a/0 C.a, k2@b/0 C.w, k3@c/0 C.w | act k1@a/0
= Second partition before the return is processed: two actives | -1 | k1@a/0 F.a, k2@b/0 C.a
    nodeup a | ok | k1@a/0 F.a, k2@b/0 C.a | check k1@a
    down k1@a noconnection | ok | k1@a/0 D.a, k2@b/0 C.a | timer(k1@a, 60000)
    nodeup a | ok | k1@a/0 D.a, k2@b/0 C.a | check k1@a
    reconnected k1@a | ok | k1@a/0 C.a, k2@b/0 C.a |
= Timer left over from a short partition | -1 | k1@a/0 C.a, k2@b/0 C.w
    down k1@a noconnection | ok | k1@a/0 D.a, k2@b/0 C.w | timer(k1@a, 60000)
    nodeup a | ok | k1@a/0 D.a, k2@b/0 C.w | check k1@a
    reconnected k1@a | ok | k1@a/0 C.a, k2@b/0 C.w |
    timeout k1@a | ok | k1@a/0 C.a, k2@b/0 C.w |
    down k1@a normal | ok | k2@b/0 C.a | act k2@b/0
= Node returns after the timer fired | -1 | k1@a/0 C.a, k2@b/0 C.w
    down k1@a noconnection | ok | k1@a/0 D.a, k2@b/0 C.w | timer(k1@a, 60000)
    timeout k1@a | ok | k1@a/0 F.a, k2@b/0 C.a | act k2@b/0
    nodeup a | ok | k1@a/0 F.a, k2@b/0 C.a | check k1@a
    reconnected k1@a | ok | k1@a/0 C.w, k2@b/0 C.w | step k1@a/0, step k2@b/0
    activate | ok | k1@a/0 C.a, k2@b/0 C.w | act k1@a/0
    activate | ok | k1@a/0 C.a, k2@b/0 C.w |
"""


class Step(NamedTuple):
    command: str
    reply: str
    after: str
    effects: str


class Scenario(NamedTuple):
    title: str
    partition_index: int
    start: str
    steps: list[Step]


def parsed() -> Iterator[Scenario]:
    scenario = None
    for line in SCENARIOS.strip().splitlines():
        fields = [field.strip() for field in f"{line} ".split("|")]
        if line.startswith("="):
            if scenario is not None:
                yield scenario
            scenario = Scenario(fields[0].removeprefix("= "), int(fields[1]), fields[2], [])
        else:
            assert scenario is not None
            scenario.steps.append(Step(*fields))
    assert scenario is not None
    yield scenario


def consumers(text: str) -> tuple[SacConsumer, ...]:
    made = []
    for one in filter(None, text.split(", ")):
        name, status = one.split()
        connection, _, subscription = name.partition("/")
        first, second = status.split(".")
        made.append(
            SacConsumer(
                connection,
                int(subscription),
                connection,
                ConsumerStatus(f"{HALVES[first]}_{HALVES[second]}"),
                0,
            )
        )
    return tuple(made)


def shown(members: tuple[SacConsumer, ...]) -> str:
    return ", ".join(
        f"{one.connection}/{one.subscription_id} "
        f"{one.status.connectivity.value[0].upper()}.{one.status.activity.value[0]}"
        for one in members
    )


def command(text: str, partition_index: int) -> SacInput:
    verb, *rest = text.split()
    group = {"stream": "s", "consumer_name": "app"}
    connection, _, subscription = rest[0].partition("/") if rest else ("", "", "")
    match verb:
        case "register":
            index = int(rest[1].removeprefix("pi=")) if len(rest) > 1 else partition_index
            return sac.RegisterConsumer(
                **group,
                connection=connection,
                subscription_id=int(subscription),
                partition_index=index,
                owner=connection,
            )
        case "unregister":
            return sac.UnregisterConsumer(**group, connection=connection, subscription_id=int(subscription))
        case "activate":
            return sac.ActivateConsumer(**group)
        case "evaluate":
            return sac.EvaluateGroup(**group, dead=tuple(re.findall(r"k\d@\w", rest[0])))
        case "down":
            return sac.ConnectionDown(connection, rest[1])
        case "timeout":
            return sac.DisconnectedTimeout(connection)
        case "nodeup":
            return sac.NodeUp(connection)
        case "reconnected":
            return sac.ConnectionReconnected(connection)
    assert verb == "purge"
    return sac.PurgeNodes(tuple(connection.split(",")))


def said(effect: sac.SacEffect) -> str:
    match effect:
        case sac.NotifyConsumer():
            assert effect.stepping_down is not effect.active
            return f"{'act' if effect.active else 'step'} {effect.connection}/{effect.subscription_id}"
        case sac.CheckConnection():
            return f"check {effect.connection}"
        case sac.StartTimer():
            return f"timer({effect.connection}, {effect.delay_ms})"
        case sac.MonitorConnection():
            return f"monitor({effect.connection})"
        case sac.DemonitorConnection():
            return f"demonitor({effect.connection})"
        case sac.MonitorNode():
            return f"node({effect.node})"


def reply(answer: sac.SacReply | None) -> str:
    assert answer is not None
    if answer.error is not None:
        return answer.error
    return "ok" if answer.is_active is None else "active" if answer.is_active else "waiting"


@pytest.mark.parametrize("scenario", [pytest.param(each, id=each.title) for each in parsed()])
def test_each_step_is_answered_as_rabbitmq_does(scenario: Scenario) -> None:
    coordinator = SacCoordinator()
    runtime = CoordinatorHost(coordinator, SacMemoryJournal())
    start = consumers(scenario.start)
    if start:
        coordinator.apply(SacRecord(KEY, SacGroupValue(scenario.partition_index, start)))
    everything = "monitor" in scenario.steps[0].effects
    for step in scenario.steps:
        outcome = runtime.step(command(step.command, scenario.partition_index), 0)
        group = coordinator.state.groups.get(KEY)
        effects = [said(effect) for effect in outcome.effects]
        if not everything:
            effects = [effect for effect in effects if not re.match(r"monitor|demonitor|node", effect)]
        assert reply(outcome.reply) == step.reply, step
        assert ("" if group is None else shown(group.consumers)) == step.after, step
        assert ", ".join(effects) == step.effects, step


def test_all_scenarios_were_read() -> None:
    scenarios = list(parsed())
    assert len(scenarios) == 25
    assert sum(len(scenario.steps) for scenario in scenarios) == SCENARIOS.count("\n    ")
