"""The analyses on traces whose answers are known: who sees which owners, moves, lag, bytes, escalations."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.simulation.pipeline.analyze import Tables

pytestmark = [
    pytest.mark.real,
    pytest.mark.long,
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("spark"),
    # Libraries of Spark's own warn of each other's; our code runs in the tests beside this one.
    pytest.mark.filterwarnings("default"),
]


def rows(tables: Tables, name: str, scenario: str) -> list[dict[str, Any]]:
    return [row for row in tables[name] if row["scenario"] == scenario]


def test_owners_are_counted_over_time_by_whose_eyes(tables: Tables) -> None:
    found = {
        (row["as_seen_by"], row["owners"]): (row["count"], row["seconds"], row["max"])
        for row in rows(tables, "owners", "epsilon")
    }
    assert found == {
        ("members", 0): (4, 6.0, 2.0),
        ("members", 1): (6, 70.0, 19.0),
        ("all members", 0): (3, 4.0, 2.0),
        ("all members", 1): (6, 71.0, 19.0),
        ("all members", 2): (1, 1.0, 1.0),
        ("coordinator", 0): (1, 1.0, 1.0),
        ("coordinator", 1): (3, 77.0, 39.0),
    }
    shares = [row["share"] for row in rows(tables, "owners", "epsilon") if row["as_seen_by"] == "members"]
    assert sum(shares) == pytest.approx(1)


def test_owners_of_all_runs_are_added_up(tables: Tables) -> None:
    found = [
        (row["owners"], row["seconds"], row["max"])
        for row in rows(tables, "owners", "three")
        if row["as_seen_by"] == "members"
    ]
    assert found == [(0, 9.0, 6.0), (1, 23.0, 9.0)]


def test_where_nothing_lasted_there_is_no_share(tables: Tables) -> None:
    (stay,) = rows(tables, "residency", "eta")
    assert (stay["state"], stay["visits"], stay["seconds"], stay["share"]) == ("JOINING", 1, 0.0, None)
    assert rows(tables, "owners", "eta") == [], "which are told by the time that they had"


def test_moves_are_counted_against_the_least_that_would_have_done(tables: Tables) -> None:
    (row,) = rows(tables, "moved_partitions", "epsilon")
    assert (row["count"], row["median"], row["max"]) == (3, 1.0, 2.0)
    assert (row["moved"], row["least"], row["excess"], row["run_moved_mean"]) == (4, 2, 2.0, 4.0)
    (row,) = rows(tables, "moved_partitions", "alpha")
    assert (row["moved"], row["least"], row["excess"]) == (2, 2, 1.0), "to m2, and back when it was gone"


def test_what_a_run_had_on_average_is_of_all_runs_so_that_causes_add_up(tables: Tables) -> None:
    assert {row["cause"]: row["run_seconds_mean"] for row in rows(tables, "downtime", "three")} == {
        "all": 3.0,
        "crash": 2.0,
        "revoked": 1.0,
    }
    assert {row["cause"]: row["run_again_mean"] for row in rows(tables, "recoveries", "three")} == {
        "all": pytest.approx(4 / 3),
        "crash": 1.0,
        "revoked": pytest.approx(1 / 3),
    }
    (moved,) = rows(tables, "moved_partitions", "three")
    assert (moved["moved"], moved["run_moved_mean"]) == (1, pytest.approx(1 / 3))


def test_a_new_owner_has_to_catch_up_and_does_some_again(tables: Tables) -> None:
    (row,) = (row for row in rows(tables, "recoveries", "epsilon") if row["cause"] == "revoked")
    assert (row["count"], row["lag_median"], row["lag_max"]) == (1, 15.0, 15.0)
    assert (row["median"], row["max"], row["behind"]) == (3.0, 3.0, 0)
    assert (row["again"], row["again_max"], row["run_again_mean"]) == (2, 2, 2.0)
    assert {row["cause"] for row in rows(tables, "recoveries", "epsilon")} == {"all", "revoked"}


def test_the_bytes_of_a_rebalance_are_those_of_its_heartbeats(tables: Tables) -> None:
    (row,) = rows(tables, "heartbeats", "epsilon")
    keepalive = 103 + len("m1") + len("g")
    assert (row["bytes_max"], row["bytes_median"]) == (150.0 + keepalive, 0.0)
    assert row["bytes_mean"] == pytest.approx((150 + keepalive) / 3)


def test_gaps_of_single_active_consumers_by_whose_eyes(tables: Tables) -> None:
    found = {
        row["as_seen_by"]: (
            row["count"],
            row["median"],
            row["max"],
            row["run_seconds_mean"],
            row["unfinished"],
        )
        for row in tables["sac_gaps"]
    }
    assert found == {"members": (2, 2.0, 3.0, 5.0, 0), "coordinator": (2, 1.0, 2.0, 11.0, 1)}
    assert rows(tables, "sac_gaps", "epsilon") == []


def test_moves_of_machines_come_with_the_time_in_the_state_before(tables: Tables) -> None:
    found = {
        (row["state_from"], row["state_to"]): (row["count"], row["share"], row["median"], row["max"])
        for row in rows(tables, "transitions", "delta")
        if row["machine"] == "sac-member"
    }
    assert found == {
        ("ACTIVATING", "ACTIVE"): (4, 1.0, None, None),
        ("ACTIVE", "STEPPING_DOWN"): (1, 0.5, 4.0, 4.0),
        ("ACTIVE", "LOST"): (1, 0.5, 9.0, 9.0),
        ("STEPPING_DOWN", "WAITING"): (1, 1.0, 1.0, 1.0),
    }
    machines = {row["scenario"]: set() for row in tables["transitions"]}
    for row in tables["transitions"]:
        machines[row["scenario"]].add(row["machine"])
    assert machines["delta"] == {"sac-member", "sac-consumer"}
    assert machines["alpha"] == {"group", "member"}
    assert machines["zeta"] == {"stream-client"}


def test_a_process_that_is_started_anew_was_in_no_state_before(tables: Tables) -> None:
    found = {
        (row["state_from"], row["state_to"]): (row["count"], row["median"])
        for row in rows(tables, "transitions", "gamma")
        if row["machine"] == "member" and row["state_from"]
    }
    assert found == {("UNSUBSCRIBED", "JOINING"): (2, None), ("JOINING", "UNSUBSCRIBED"): (2, 2.0)}


def test_escalations_last_until_each_client_is_in_error(tables: Tables) -> None:
    found = {row["answer"]: row for row in rows(tables, "escalations", "zeta")}
    alone, whole = found["SHUTDOWN_CLIENT"], found["SHUTDOWN_APPLICATION"]
    assert (alone["requests"], alone["count"], alone["median"], alone["unfinished"]) == (1, 1, 1.0, 0)
    assert (whole["requests"], whole["count"], whole["unfinished"]) == (1, 3, 1)
    assert (whole["median"], whole["max"], whole["last_max"]) == (2.0, 4.0, 4.0)


def test_a_fenced_member_takes_some_time_to_be_back(tables: Tables) -> None:
    assert {row["recovered"] for row in rows(tables, "fencings", "alpha")} == {0}
    (row,) = rows(tables, "fencings", "epsilon")
    assert (row["cause"], row["count"], row["recovered"], row["median"]) == ("session", 1, 1, 5.0)


def test_invariants_are_reached_and_broken(tables: Tables) -> None:
    def found(scenario: str) -> dict[str, tuple[int, int, int, str]]:
        return {
            row["invariant"]: (row["reached"], row["runs"], row["broken"], row["situations"])
            for row in rows(tables, "invariants", scenario)
        }

    assert found("alpha")["epochs-monotone"] == (6, 1, 0, "epoch raised")
    assert found("alpha")["commit-fenced"] == (1, 1, 0, "commit refused")
    assert "sac-exclusive" not in found("alpha")
    assert found("beta")["one owner"] == (0, 0, 1, "")
    assert found("delta")["sac-exclusive"] == (3, 1, 0, "consumer activated")
