"""Who holds which partition, against the plainest way to say it: a member's entries made anew each time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.errors import InconsistentRecord

TOPICS = ("s", "t")
partitions = st.dictionaries(
    st.sampled_from(TOPICS), st.sets(st.integers(0, 4), min_size=1).map(lambda each: tuple(sorted(each)))
)


def place(group, member_id, epoch, assigned, pending=None):
    held = {topic: {**dict.fromkeys(numbers, epoch)} for topic, numbers in assigned.items()}
    for topic, numbers in (pending or {}).items():
        held.setdefault(topic, {}).update(dict.fromkeys(numbers, epoch))
    value = r.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=epoch,
        previous_member_epoch=epoch - 1,
        state=1 if pending else 0,
        assigned=assigned,
        pending_revocation=pending or {},
        assignment_epochs=held,
    )
    group.apply_current_assignment(r.ConsumerGroupCurrentMemberAssignmentKey("g", member_id), value)


def disjoint(one, other):
    rest = {
        topic: tuple(n for n in numbers if n not in one.get(topic, ())) for topic, numbers in other.items()
    }
    return {topic: numbers for topic, numbers in rest.items() if numbers}


class Plain:
    """The same, without a thought for speed."""

    def __init__(self):
        self.holders = {}
        self.epochs = {}

    def place(self, member_id, epoch, held):
        """False if it has to be refused."""
        pairs = {(topic, number) for topic, numbers in held for number in numbers}
        for pair in pairs:
            other = self.holders.get(pair, member_id)
            if other != member_id and self.epochs[other] >= epoch:
                return False
        self.holders = {pair: holder for pair, holder in self.holders.items() if holder != member_id}
        self.holders.update(dict.fromkeys(pairs, member_id))
        self.epochs[member_id] = epoch
        return True

    def as_dict(self):
        found = {}
        for (topic, number), holder in self.holders.items():
            found.setdefault(topic, {})[number] = self.epochs[holder]
        return found


@given(
    st.lists(
        st.tuples(st.sampled_from(("a", "b", "c")), st.integers(0, 9), partitions, partitions, st.booleans()),
        max_size=30,
    )
)
def test_the_map_is_what_the_members_say_in_any_order(steps):
    group, plain = ConsumerGroup("g"), Plain()
    for member_id, epoch, assigned, others, gone in steps:
        pending = disjoint(assigned, others)
        if gone:
            group.apply_current_assignment(r.ConsumerGroupCurrentMemberAssignmentKey("g", member_id), None)
            plain.place(member_id, epoch, [])
        elif plain.place(member_id, epoch, [*assigned.items(), *pending.items()]):
            place(group, member_id, epoch, assigned, pending)
        else:
            with pytest.raises(InconsistentRecord, match="cannot be held at epoch"):
                place(group, member_id, epoch, assigned, pending)
        assert group.partition_epochs.as_dict() == plain.as_dict()
        assert len(group.partition_epochs) == len(plain.holders)


def test_a_member_cannot_hold_a_partition_twice():
    group = ConsumerGroup("g")
    place(group, "a", 3, {"t": (0, 1)})
    with pytest.raises(InconsistentRecord, match="twice"):
        place(group, "a", 4, {"t": (0, 1)}, {"t": (1, 2)})
    assert group.partition_epochs.as_dict() == {"t": {0: 3, 1: 3}}


def test_a_refused_record_changes_nothing():
    group = ConsumerGroup("g")
    place(group, "b", 5, {"t": (1,)})
    place(group, "a", 3, {"t": (0, 2)})
    with pytest.raises(InconsistentRecord):
        place(group, "a", 4, {"t": (1, 2)})
    assert group.partition_epochs.as_dict() == {"t": {0: 3, 1: 5, 2: 3}}
    place(group, "a", 6, {"t": (0, 2, 3)})
    assert group.partition_epochs.as_dict() == {"t": {0: 6, 1: 5, 2: 6, 3: 6}}
