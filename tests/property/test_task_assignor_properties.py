"""What any target of the task assignor holds to (KIP-1071), whatever came before."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from fencepost.coordinator.assign.java_order import PriorityQueue, hash_map_order, timeline_order
from fencepost.coordinator.assign.tasks import TaskGroupSpec, TaskMember, sticky
from fencepost.coordinator.protocol.streams import TaskId, Tasks
from fencepost.simulation.streams.placements import Placement

MEMBERS = st.dictionaries(
    st.text("abcdef0123456789", min_size=1, max_size=6),
    st.sampled_from(["p", "q", "r", "s"]),
    min_size=1,
    max_size=8,
)
TOPOLOGIES = st.dictionaries(st.sampled_from("0123"), st.integers(1, 9), min_size=1).map(
    lambda tasks: dict(sorted(tasks.items()))
)


@st.composite
def specs(draw: st.DrawFn) -> TaskGroupSpec:
    """A group whose targets may come from another topology, other members, other numbers of standbys."""
    stateful = frozenset(draw(st.sets(st.sampled_from("0123"))))
    now = draw(MEMBERS)
    before: dict[str, Tasks] = {}
    for _ in range(draw(st.integers(0, 2))):
        members = {**draw(MEMBERS), **{m: p for m, p in now.items() if draw(st.booleans())}}
        spec = TaskGroupSpec(
            members={m: TaskMember(p, before.get(m, Tasks())) for m, p in members.items()},
            tasks=draw(TOPOLOGIES),
            stateful=stateful,
            num_standby_replicas=draw(st.integers(0, 2)),
        )
        before = sticky(spec)
    return TaskGroupSpec(
        members={m: TaskMember(p, before.get(m, Tasks())) for m, p in now.items()},
        tasks=draw(TOPOLOGIES),
        stateful=stateful,
        num_standby_replicas=draw(st.integers(0, 2)),
    )


def ids(tasks) -> list[TaskId]:
    return [TaskId(one, number) for one, numbers in tasks.items() for number in numbers]


def by_process(spec: TaskGroupSpec, target: dict[str, Tasks]) -> dict[str, list[TaskId]]:
    found: dict[str, list[TaskId]] = {}
    for member_id, member in spec.members.items():
        tasks = target[member_id]
        found.setdefault(member.process_id, []).extend(ids(tasks.active) + ids(tasks.standby))
    return found


def again(spec: TaskGroupSpec, target: dict[str, Tasks]) -> TaskGroupSpec:
    members = {m: TaskMember(one.process_id, target[m]) for m, one in spec.members.items()}
    return msgspec.structs.replace(spec, members=members)


@given(specs())
def test_every_task_is_active_once_and_nobody_is_left_out(spec):
    target = sticky(spec)
    assert target.keys() == spec.members.keys()
    active = sorted(task for tasks in target.values() for task in ids(tasks.active))
    assert active == sorted(TaskId(one, n) for one, count in spec.tasks.items() for n in range(count))
    assert not any(tasks.warmup for tasks in target.values())


@given(specs())
def test_a_process_has_a_task_in_one_role_and_once(spec):
    for tasks in by_process(spec, sticky(spec)).values():
        assert len(tasks) == len(set(tasks))


@given(specs())
def test_tasks_with_state_are_stood_by_for_as_far_as_there_are_processes(spec):
    target = sticky(spec)
    processes = len({member.process_id for member in spec.members.values()})
    wanted = min(spec.num_standby_replicas, processes - 1)
    standby = [task for tasks in target.values() for task in ids(tasks.standby)]
    for one, count in spec.tasks.items():
        for number in range(count):
            assert standby.count(TaskId(one, number)) == (wanted if one in spec.stateful else 0)


@given(specs())
def test_tasks_are_in_order_and_nothing_is_empty(spec):
    for tasks in sticky(spec).values():
        for role in (tasks.active, tasks.standby):
            assert [*role] == sorted(role)
            assert all(numbers and list(numbers) == sorted(set(numbers)) for numbers in role.values())


@given(specs())
def test_a_new_group_shares_evenly(spec):
    """By process and its members: no member has two tasks more than another of a process of its size."""
    fresh = TaskGroupSpec(
        members={m: TaskMember(one.process_id) for m, one in spec.members.items()}, tasks=spec.tasks
    )
    target = sticky(fresh)
    sizes: dict[str, int] = {}
    for member in fresh.members.values():
        sizes[member.process_id] = sizes.get(member.process_id, 0) + 1
    for size in set(sizes.values()):
        counts = [
            len(ids(target[m].active)) for m, one in fresh.members.items() if sizes[one.process_id] == size
        ]
        assert max(counts) - min(counts) <= 1


@given(specs())
def test_an_active_task_that_stays_with_its_member_is_no_ones_loss(spec):
    """A member within the share of all keeps every active task that it had."""
    target = sticky(spec)
    total = sum(spec.tasks.values())
    least = total // len(spec.members)
    for member_id, member in spec.members.items():
        had = {task for task in ids(member.target.active) if task.partition < spec.tasks.get(task[0], 0)}
        if len(had) <= least:
            assert had <= set(ids(target[member_id].active))


@given(specs())
def test_no_active_task_moves_where_nothing_changed(spec):
    """Standby tasks may: in Kafka too, each computation shares them anew."""
    target = sticky(spec)
    once_more = sticky(again(spec, target))
    twice_more = sticky(again(spec, once_more))
    assert [once_more[m].active for m in target] == [twice_more[m].active for m in target]


@given(st.lists(st.text(min_size=1, max_size=4), unique=True))
def test_orders_hold_each_key_once(keys):
    assert sorted(hash_map_order(keys)) == sorted(timeline_order(keys)) == sorted(keys)


@given(st.lists(st.integers(0, 9)))
def test_a_queue_gives_the_least_first(numbers):
    queue = PriorityQueue(numbers, float)
    assert [queue.poll() for _ in numbers] == sorted(numbers)
    assert not len(queue)


@given(specs(), st.booleans())
def test_the_judge_of_targets_never_objects(spec, stateful):
    """To any target, whatever came before; it judges topologies whose tasks all have state, or none has."""
    spec = msgspec.structs.replace(spec, stateful=frozenset(spec.tasks if stateful else ()))
    placement = Placement(
        {member_id: one.process_id for member_id, one in spec.members.items()},
        {member_id: one.target for member_id, one in spec.members.items()},
        sticky(spec),
        [(one, number) for one, count in spec.tasks.items() for number in range(count)],
        standbys=spec.num_standby_replicas if stateful else 0,
    )
    assert list(placement.findings()) == []
