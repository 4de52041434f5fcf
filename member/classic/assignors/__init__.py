"""The assignors of Kafka's classic consumer by their names in `partition.assignment.strategy`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from fencepost.member.classic.assignor import Assignor
from fencepost.member.classic.assignors.plain import RangeAssignor, RoundRobinAssignor
from fencepost.member.classic.assignors.sticky import CooperativeStickyAssignor, StickyAssignor

ASSIGNORS: Final[Mapping[str, Callable[[], Assignor]]] = {
    RangeAssignor.name: RangeAssignor,
    RoundRobinAssignor.name: RoundRobinAssignor,
    StickyAssignor.name: StickyAssignor,
    CooperativeStickyAssignor.name: CooperativeStickyAssignor,
}
"""Each entry makes an assignor for one member. Kafka's default is `range`."""
