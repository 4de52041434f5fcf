"""Leaders and leader epochs of partitions, with values that Kafka 4.3.1 showed."""

from __future__ import annotations

import pytest

from fencepost.coordinator.server.leaders import NO_LEADER, EpochStarts, Leadership

NO_NODES: frozenset[int] = frozenset()


def shown(state: Leadership) -> tuple[int, int, tuple[int, ...]]:
    return state.leader_id, state.epoch, state.in_sync


@pytest.mark.parametrize(
    ("replicas", "stopped", "stopped_state", "started_state", "elected_state"),
    [
        ((1,), 1, (NO_LEADER, 1, (1,)), (1, 2, (1,)), (1, 2, (1,))),
        ((2,), 1, (2, 0, (2,)), (2, 0, (2,)), (2, 0, (2,))),
        ((1, 2), 1, (2, 1, (2,)), (2, 1, (1, 2)), (1, 2, (1, 2))),
        ((3, 1), 1, (3, 0, (3,)), (3, 0, (3, 1)), (3, 0, (3, 1))),
        ((1, 2, 3), 1, (2, 1, (2, 3)), (2, 1, (1, 2, 3)), (1, 2, (1, 2, 3))),
        ((2, 3, 1), 2, (3, 1, (3, 1)), (3, 1, (2, 3, 1)), (2, 2, (2, 3, 1))),
    ],
)
def test_each_change_of_a_leader_raises_the_epoch(
    replicas, stopped, stopped_state, started_state, elected_state
):
    state = Leadership.first(replicas, NO_NODES, 0).without(stopped)
    assert shown(state) == stopped_state
    state = state.with_started(stopped, {stopped})
    assert shown(state) == started_state
    assert shown(state.preferred(NO_NODES)) == elected_state


def test_only_the_last_replica_in_sync_leads_again():
    state = Leadership.first((1, 2), NO_NODES, 0).without(1).without(2)
    assert shown(state) == (NO_LEADER, 2, (2,))
    assert state.with_started(1, {1, 2}) == state
    assert shown(state.with_started(2, {2})) == (2, 3, (1, 2))


def test_no_stopped_broker_is_elected():
    state = Leadership.first((1, 2), NO_NODES, 0).without(1)
    assert state.preferred({1}) == state


def test_a_restart_of_all_raises_the_epoch_by_two():
    assert Leadership.first((1,), NO_NODES, 0).restarted().epoch == 2
    stopped = Leadership.first((1,), {1}, 0)
    assert stopped.restarted() == stopped


def test_an_epoch_ends_where_the_next_one_starts():
    starts = EpochStarts()
    starts.begin(0, 0)
    starts.begin(1, 10)
    starts.begin(2, 15)
    assert [starts.end(epoch, 18) for epoch in range(-1, 4)] == [None, (0, 10), (1, 15), (2, 18), None]
    assert [starts.at(offset) for offset in (0, 9, 10, 14, 15, 17)] == [0, 0, 1, 1, 2, 2]


def test_an_epoch_without_records_has_the_end_of_the_one_before():
    starts = EpochStarts()
    starts.begin(0, 0)
    starts.begin(1, 10)
    starts.begin(2, 10)
    starts.begin(6, 10)
    assert [starts.end(epoch, 11) for epoch in (0, 1, 5, 6, 7)] == [(0, 10), (0, 10), (0, 10), (6, 11), None]


def test_an_epoch_before_the_first_one_ends_at_the_start():
    starts = EpochStarts()
    starts.begin(2, 0)
    assert [starts.end(epoch, 0) for epoch in (0, 1, 2)] == [(0, 0), (1, 0), (2, 0)]


def test_deleted_records_take_their_epochs_along():
    starts = EpochStarts()
    starts.begin(0, 0)
    starts.begin(1, 10)
    starts.begin(2, 15)
    starts.start_at(12)
    assert [starts.end(epoch, 18) for epoch in (0, 1, 2)] == [(0, 12), (1, 15), (2, 18)]
    assert starts.at(11) == -1
