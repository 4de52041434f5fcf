"""Every move of a member machine is an arrow of its table, and begins where the last one ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from fencepost.member.classic.states import CLASSIC_MEMBER, ClassicMemberEvent
from fencepost.member.consumer.states import CONSUMER_MEMBER
from fencepost.simulation.checkers.base import Checker, Finding

_ARROWS: Final = frozenset((str(t.source), str(t.event), str(t.target)) for t in CONSUMER_MEMBER.transitions)
_CLASSIC_ARROWS: Final = frozenset(
    (str(t.source), str(t.event), str(t.target)) for t in CLASSIC_MEMBER.transitions
)


class MachineWatch:
    """One member machine: where it stands."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state = str(CONSUMER_MEMBER.initial)

    def move(self, host: str, event: str, source: str, target: str) -> Iterator[Finding]:
        """Takes one arrow, of the table that the event is from."""
        if source != self.state:
            yield "transitions", f"{host} left {source} on {event}, but was in {self.state}"
        arrows = _CLASSIC_ARROWS if isinstance(event, ClassicMemberEvent) else _ARROWS
        if (source, event, target) not in arrows:
            yield (
                "transitions",
                f"{host} went from {source} on {event} to {target}, which is no arrow of the table",
            )
        self.state = target


class Transitions(Checker):
    """Watches all member machines of a world."""

    def __init__(self) -> None:
        self._machines: defaultdict[str, MachineWatch] = defaultdict(MachineWatch)

    def on_member_host(self, host: str, what: str, now_us: int) -> None:
        """A new process has a new machine."""
        if what == "start":
            self._machines[host] = MachineWatch()

    def on_member_state(self, host: str, event: str, source: str, target: str, now_us: int) -> None:
        """Checks one move."""
        self.report_all(self._machines[host].move(host, event, str(source), str(target)))
