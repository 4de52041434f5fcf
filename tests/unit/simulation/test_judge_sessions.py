"""Who is removed, and when: a coordinator's removals that are early, late or without a cause are reported."""

from __future__ import annotations

import pytest

from fencepost.coordinator.protocol.consumer import LeaveGroupRequest
from fencepost.coordinator.protocol.outcome import SessionEnded
from tests.unit.simulation.judged_steps import ConsumerScene, beat


class Scene(ConsumerScene):
    """Sessions of 45 s, rebalances of 60 s."""

    def revokes(self, member_id: str) -> None:
        assert self.group.members[member_id].pending_revocation

    def leave(self, member_id: str) -> None:
        self.step(LeaveGroupRequest(group_id="g", member_id=member_id))

    def ended(self, member_id: str) -> None:
        self.step(SessionEnded(group_id="g", member_id=member_id))

    def removed_beside(self, member_id: str, other: str, kind: str) -> None:
        """It is removed, though another one leaves or is removed."""
        named = LeaveGroupRequest(group_id="g", member_id=other)
        self.removed(member_id, beat(other, -1) if kind == "leaves" else named)

    def appends(self, phase: str) -> None:
        """The log begins or ends to refuse records."""
        self.judge.on_fault("append-failure", phase, "", self.now_ms * 1_000)


STEP = "; at {at}; beat A; beat B"
REVOKES = "at 1; beat A 01; revokes A" + "".join(STEP.format(at=at) for at in range(2, 62, 2))


@pytest.mark.parametrize(
    ("script", "broken"),
    [
        # A session has its full length after a heartbeat that was accepted, and after a load.
        ("at 45; expires A session", ""),
        ("at 44.999; expires A session", "members-kept"),
        ("at 10; beat A; at 45; expires B session", ""),
        ("at 10; beat A; at 54.999; expires A session", "members-kept gone-members"),
        ("at 10; beat A e=99; at 45; expires A session", ""),
        ("at 45; expires A rebalance", "members-kept"),
        ("load 0; load 20; at 64.999; expires A session", "members-kept"),
        # A revocation has its whole rebalance timeout.
        (REVOKES + "; at 60.999; expires A rebalance", "members-kept"),
        (REVOKES + "; at 61; expires A rebalance", ""),
        # A removal has a cause: the member's own leave, an administrator who names it, or a return.
        ("at 45; removed A", "members-kept"),
        ("removed_beside A B leaves", "members-kept"),
        ("removed_beside A B by-name", "members-kept"),
        ("at 1; beat A e=-1; gone A", ""),
        ("at 1; leave A; gone A", ""),
        ("at 1; ended A; gone A", ""),
        ("join S i; at 1; beat S e=-2 i=i; at 2; join T i; gone S", ""),
        # Members that outlive their session are reported at once, unless timers could do nothing.
        ("at 45.001; beat B; at 50.002; beat B none", "gone-members"),
        ("at 30; appends begin; at 50; beat B none; appends end; at 95; beat B none", ""),
        ("at 30; appends begin; at 50; beat B none; appends end; at 95; beat B none; at 100; beat B none",
         "gone-members"),
    ],
)  # fmt: skip
def test_a_member_is_removed_for_a_reason_and_in_time(script: str, broken: str) -> None:
    assert Scene("join A; join B").play_wrongly(script, None) == set(broken.split())
