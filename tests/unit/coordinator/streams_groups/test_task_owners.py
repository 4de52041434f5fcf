"""Who holds which task, as records say: an active one is one process's, others are any number's."""

from __future__ import annotations

import msgspec
import pytest

from fencepost.coordinator.protocol.streams import Tasks
from fencepost.coordinator.streams.member import StreamsGroupMember
from fencepost.coordinator.streams.owners import TaskOwners

ONE = StreamsGroupMember(member_id="a", process_id="p")
TWO = StreamsGroupMember(member_id="b", process_id="q")
PASSIVE = [Tasks(standby={"0": (1,)}), Tasks(warmup={"0": (1,)})]


def holding(member, tasks, *, pending=None):
    return msgspec.structs.replace(member, assigned=tasks, pending_revocation=pending or Tasks())


@pytest.mark.parametrize("tasks", PASSIVE, ids=["standby", "warmup"])
def test_a_passive_task_is_held_by_each_process_for_itself(tasks):
    owners = TaskOwners()
    one, two = holding(ONE, tasks), holding(TWO, tasks)
    owners.replace(None, one)
    assert owners.is_passive_in("p", "0", 1)
    assert not owners.is_passive_in("q", "0", 1)
    assert owners.active("0", 1) is None
    owners.replace(None, two)
    assert owners.is_passive_in("p", "0", 1)
    assert owners.is_passive_in("q", "0", 1)
    owners.replace(one, None)
    assert not owners.is_passive_in("p", "0", 1)
    assert owners.is_passive_in("q", "0", 1)


@pytest.mark.parametrize("tasks", PASSIVE, ids=["standby", "warmup"])
def test_it_is_held_until_it_is_let_go(tasks):
    owners = TaskOwners()
    first, then = holding(ONE, tasks), holding(ONE, Tasks(), pending=tasks)
    owners.replace(None, first)
    owners.replace(first, then)
    assert owners.is_passive_in("p", "0", 1)
    owners.replace(then, ONE)
    assert not owners.is_passive_in("p", "0", 1)
    assert owners.as_dict() == TaskOwners().as_dict()


def test_an_active_task_is_the_last_one_s():
    owners = TaskOwners()
    one, two = holding(ONE, Tasks({"0": (1,)})), holding(TWO, Tasks({"0": (1,)}))
    owners.replace(None, one)
    owners.replace(None, two)
    assert owners.active("0", 1) == "q"
    owners.replace(one, ONE)
    assert owners.active("0", 1) == "q"
    owners.replace(two, None)
    assert owners.active("0", 1) is None
