"""The tables of stream threads and clients: the KIPs' arrows, and where Kafka's own differ."""

from __future__ import annotations

import itertools

import pytest

from fencepost.member.machines import (
    KAFKA_4_CLIENT,
    KAFKA_4_THREAD,
    MACHINES,
    OtherMachine,
    Verdict,
    verdict,
)
from fencepost.member.streams.client_states import STREAM_CLIENT
from fencepost.member.streams.thread_states import RUNNING, STREAM_THREAD
from fencepost.member.streams.thread_states import StreamThreadState as T

THREAD_ARROWS = {
    "CREATED": {"STARTING", "PENDING_SHUTDOWN"},
    "STARTING": {"PARTITIONS_REVOKED", "PENDING_SHUTDOWN", "DISCONNECTED"},
    "PARTITIONS_REVOKED": {"PARTITIONS_ASSIGNED", "PENDING_SHUTDOWN", "DISCONNECTED"},
    "PARTITIONS_ASSIGNED": {"PARTITIONS_REVOKED", "RUNNING", "PENDING_SHUTDOWN", "DISCONNECTED"},
    "RUNNING": {"PARTITIONS_REVOKED", "PENDING_SHUTDOWN", "DISCONNECTED"},
    "DISCONNECTED": {
        "STARTING",
        "PARTITIONS_REVOKED",
        "PARTITIONS_ASSIGNED",
        "RUNNING",
        "PENDING_SHUTDOWN",
    },
    "PENDING_SHUTDOWN": {"DEAD"},
    "DEAD": set(),
}
CLIENT_ARROWS = {
    "CREATED": {"REBALANCING", "PENDING_SHUTDOWN"},
    "REBALANCING": {"RUNNING", "DISCONNECTED", "PENDING_SHUTDOWN", "PENDING_ERROR"},
    "RUNNING": {"REBALANCING", "DISCONNECTED", "PENDING_SHUTDOWN", "PENDING_ERROR"},
    "DISCONNECTED": {"REBALANCING", "RUNNING", "PENDING_SHUTDOWN", "PENDING_ERROR"},
    "PENDING_SHUTDOWN": {"NOT_RUNNING"},
    "NOT_RUNNING": set(),
    "PENDING_ERROR": {"ERROR"},
    "ERROR": set(),
}
KAFKA_THREAD = """
    throw ok    throw throw throw ok    throw
    throw throw ok    ok    throw ok    throw
    throw throw ok    ok    throw ok    throw
    throw throw ok    ok    ok    ok    throw
    throw throw ok    ok    ok    ok    throw
    quiet quiet quiet quiet quiet quiet ok
    quiet quiet quiet quiet quiet quiet quiet
"""
KAFKA_CLIENT = """
    throw ok    throw ok    throw throw throw
    throw quiet ok    ok    throw ok    throw
    throw ok    ok    ok    throw ok    throw
    quiet quiet quiet quiet ok    quiet quiet
    throw throw throw quiet quiet throw throw
    quiet quiet quiet quiet quiet quiet ok
    throw throw throw throw throw quiet quiet
"""
"""Kafka's answers to each move, states in the order of their ordinals."""
ANSWERS = {"ok": Verdict.MADE, "quiet": Verdict.REFUSED, "throw": Verdict.AN_ERROR}


@pytest.mark.parametrize(
    ("table", "arrows"), [(STREAM_THREAD, THREAD_ARROWS), (STREAM_CLIENT, CLIENT_ARROWS)]
)
def test_arrows_are_those_of_the_kips(table: object, arrows: dict[str, set[str]]) -> None:
    assert table in MACHINES.values()
    found: dict[str, set[str]] = {str(state): set() for state in table.states}  # type: ignore[attr-defined]
    for arrow in table.transitions:  # type: ignore[attr-defined]
        found[str(arrow.source)].add(str(arrow.target))
    assert found == arrows


def test_what_a_thread_refuses_without_an_error() -> None:
    quiet = {(T.PARTITIONS_REVOKED, T.PARTITIONS_REVOKED)}
    quiet |= {(T.PENDING_SHUTDOWN, state) for state in set(T) - {T.DEAD}}
    assert set(STREAM_THREAD.refused) == quiet


def test_running_is_what_kip_457_says() -> None:
    assert set(RUNNING) == {
        T.RUNNING,
        T.STARTING,
        T.PARTITIONS_REVOKED,
        T.PARTITIONS_ASSIGNED,
        T.DISCONNECTED,
    }


@pytest.mark.parametrize(
    ("table", "matrix"), [(KAFKA_4_THREAD.table, KAFKA_THREAD), (KAFKA_4_CLIENT.table, KAFKA_CLIENT)]
)
def test_kafkas_tables_answer_as_kafka_does(table: object, matrix: str) -> None:
    states = [str(state) for state in table.states]  # type: ignore[attr-defined]
    wanted = dict(zip(itertools.product(states, states), matrix.split(), strict=True))
    found = {move: verdict(table, move) for move in wanted}  # type: ignore[arg-type]
    assert found == {move: ANSWERS[word] for move, word in wanted.items()}


@pytest.mark.parametrize("view", [KAFKA_4_THREAD, KAFKA_4_CLIENT], ids=lambda view: view.table.name)
def test_the_list_of_differences_is_exact(view: OtherMachine) -> None:
    listed = [move for difference in view.differences for move in difference.steps]
    states = [str(state) for state in view.ours.states]
    differ = [
        move
        for move in itertools.product(states, states)
        if verdict(view.ours, move) is not verdict(view.table, move)
    ]
    assert sorted(listed) == sorted(differ)
    assert all(difference.reason.endswith(".") for difference in view.differences)
