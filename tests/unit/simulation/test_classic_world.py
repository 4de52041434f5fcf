"""Groups of the classic protocol in the simulated world: eager, cooperative, static, and migrated."""

from __future__ import annotations

from collections import Counter

import pytest

from fencepost.coordinator.protocol.classic import JoinGroupResponse
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.kernel.observers import Observer
from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import load, loads
from tests.unit.simulation.kept_rows import KeptRows

CALM = """
duration = "4m"
quiet = "1m"
[group]
members = 4
protocol = "classic"
start = "0s..1s"
[application]
restart = "2s..4s"
poll = "2s"
[[topics]]
name = "orders"
partitions = 8
records_per_second = 8
"""
DEPLOY = CALM + '[[steps]]\nkind = "rolling-restart"\nat = "25%"\nover = "40%"\n'


class Rows(KeptRows):
    def of(self, kind, detail=None):
        """`detail` may be the first word alone: sizes may follow it."""
        return [
            row
            for row in self
            if row.kind == kind and detail in (None, row.detail, row.detail.partition(" ")[0])
        ]


def played(text, seed=3, *overrides):
    rows = Rows()
    result = run(loads(text, overrides=overrides), seed, trace=rows)
    assert result.violations == []
    assert result.converged
    return result, rows


@pytest.mark.parametrize(
    "strategy",
    [
        "range",
        *(pytest.param(each, marks=pytest.mark.long) for each in ("roundrobin", "sticky")),
        "cooperative-sticky",
    ],
)
@pytest.mark.parametrize("name", ["swarm", "static-rolling-deploy", "manual-commits"])
def test_any_scenario_runs_with_the_classic_protocol(name, strategy):
    chosen = ["group.protocol=classic", f"group.partition_assignment_strategy={strategy}"]
    result = run(load(name, overrides=chosen), 11)
    assert result.violations == []
    assert result.converged
    assert result.heartbeats > 200


def test_deploys_take_a_group_from_one_assignor_to_another():
    """While members offer different ones the group goes by one that they share."""
    steps = "".join(
        f'[[steps]]\nkind = "rolling-restart"\nat = "{at}%"\nover = "15%"\n'
        f"partition_assignment_strategy = {names}\n"
        for at, names in ((25, ["range", "roundrobin"]), (55, ["roundrobin"]))
    )
    used = []

    class Watch(Observer):
        def on_member_response(self, host, request, response, now_us):
            if isinstance(response, JoinGroupResponse) and not response.error_code:
                used.append(response.protocol_name)

    result = run(loads(CALM + steps), 4, judges=[Watch()])
    assert result.converged
    assert list(dict.fromkeys(used)) == ["range", "roundrobin"]
    assert used[-1] == "roundrobin"


def test_a_topic_that_grows_is_shared_out_once_members_look():
    grows = '[[steps]]\nkind = "grow-topic"\nname = "orders"\npartitions = 12\nat = "20%"\n'
    _, rows = played(CALM.replace('quiet = "1m"', "") + grows, 3, "group.metadata_max_age=30s")
    grown = rows.of("topic", "grown 12")[0].t_us
    owners = {p for row in rows.of("callback.end", "assigned") if row.t_us > grown for p in row.partitions}
    assert {partition.partition for partition in owners} >= {8, 9, 10, 11}


def test_a_pattern_is_looked_up_by_the_members():
    created = '[[steps]]\nkind = "create-topic"\nname = "orders-eu"\npartitions = 4\nat = "30%"\n'
    _, rows = played(
        CALM.replace('quiet = "1m"', "") + created,
        3,
        "group.pattern=orders.*",
        "group.metadata_max_age=20s",
    )
    topics = {partition.topic for row in rows.of("callback.end", "assigned") for partition in row.partitions}
    assert topics == {"orders", "orders-eu"}


def test_an_eager_rebalance_takes_everything_from_everybody():
    _, rows = played(DEPLOY)
    began = rows.of("group.epoch", "leave")[0].t_us
    ended = next(row.t_us for row in rows.of("group.state") if row.state_to == "Stable" and row.t_us > began)
    taken = Counter(
        partition
        for row in rows.of("callback.begin", "revoked")
        if began - 1_000_000 < row.t_us < ended
        for partition in row.partitions
    )
    assert len(taken) == 8
    assert set(taken.values()) == {1}


def test_a_cooperative_rebalance_takes_only_what_moves():
    strategy = "group.partition_assignment_strategy=cooperative-sticky"
    (eager, all_taken), (cooperative, taken) = played(DEPLOY), played(DEPLOY, 3, strategy)
    count = [
        sum(len(row.partitions) for row in rows.of("callback.begin", "revoked"))
        for rows in (all_taken, taken)
    ]
    assert count[1] < count[0] / 3
    assert cooperative.rebalances > eager.rebalances  # what is taken away is given in a second round


def test_a_deploy_of_static_members_is_no_rebalance():
    result, rows = played(DEPLOY, 3, "group.static=true")
    assert result.rebalances == 0
    assert len(rows.of("group.epoch")) == 1
    assert Counter(row.detail for row in rows.of("member.removed")) == {"replaced": 4}


def test_the_trace_of_a_classic_group_tells_what_that_of_a_consumer_group_does():
    _, rows = played(DEPLOY)
    epochs = [row.group_epoch for row in rows.of("group.epoch")]
    assert epochs == list(range(1, len(epochs) + 1))
    assert [row.group_epoch for row in rows.of("group.target")] == epochs
    assert {row.state_to for row in rows.of("group.epoch")} == {"PreparingRebalance"}
    joins = [row for row in rows.of("heartbeat", "join") if not row.error]
    assert {row.member_epoch for row in joins} == set(epochs)
    assert all(row.actor.startswith("member-") for row in rows.of("heartbeat"))
    assert rows.of("heartbeat", "full")[0].partitions
    assert {row.error for row in rows.of("heartbeat", "keepalive")} >= {"", "REBALANCE_IN_PROGRESS"}


def test_a_static_leader_that_came_back_notices_that_its_topic_grows():
    """KIP-814: it did not assign, so that nobody else knows how many partitions there were."""
    grows = '[[steps]]\nkind = "grow-topic"\nat = "75%"\nname = "orders"\npartitions = 12\n'
    _, rows = played(DEPLOY + grows, 3, "group.static=true", "group.metadata_max_age=5s")
    assert len(rows.of("group.target")) == 2


@pytest.mark.parametrize("static", [False, True])
def test_a_group_is_migrated_there_and_back(static):
    rows = Rows()
    scenario = load("rolling-migration", overrides=[f"group.static={str(static).lower()}"])
    result = run(scenario, 4, trace=rows)
    assert result.violations == []
    assert result.converged
    states = [row.state_to for row in rows.of("group.state")]
    assert {"PreparingRebalance", "CompletingRebalance", "Reconciling"} <= set(states)
    assert states.index("PreparingRebalance") < states.index("Reconciling")
    back = max(index for index, state in enumerate(states) if state == "Reconciling")
    assert "Stable" in states[back:]
    assert states[-1] == "Stable"
    last = [row.state_from for row in rows.of("member.state")][-1]
    assert last in {"COMPLETING_REBALANCE", "UNJOINED", "PREPARING_REBALANCE", "STABLE"}
    epochs = [row.group_epoch for row in rows.of("group.epoch")]
    assert max(epochs) == epochs[-1]


def test_a_migrated_group_begins_with_what_its_own_assignor_gave():
    uneven = ["group.static=true", "group.partition_assignment_strategy=range"]
    result = run(load("rolling-migration", overrides=uneven, partitions=4), 0)
    assert result.violations == []


@pytest.mark.long
def test_equal_seeds_give_equal_migrations():
    first, again = (run(load("rolling-migration"), 5).digest for _ in range(2))
    assert first == again


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "group.session_timeout=1s",
            "overrides: group.session_timeout=1s: expected what group.min.session.timeout.ms",
        ),
        ("group.heartbeat_interval=50s", "expected less than group.session_timeout, which is 45s, got 50s"),
        ("group.protocol=share", "group.protocol=share"),
        ("group.partition_assignment_strategy=uniform", "partition_assignment_strategy"),
    ],
)
def test_impossible_settings_are_refused(override, message):
    with pytest.raises(FencepostError, match=message):
        loads(CALM, overrides=[override])


@pytest.mark.parametrize("seed", [3, 5])
def test_each_join_that_a_broker_accepts_has_a_row_while_another_broker_restarts(seed):
    rows = Rows()
    run(load("classic-rolling-deploy"), seed, trace=rows)
    accepted = {(row.actor, row.member_epoch) for row in rows.of("heartbeat", "join") if not row.error}
    joined = {(row.actor, row.member_epoch) for row in rows.of("member.state", "joined")}
    assert len(joined) > 20
    assert joined <= accepted
