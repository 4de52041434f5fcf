"""The kept trace of an embedded cluster: rows, violations, and names of members for people.

Names are instance ids or client ids; rows have member ids.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.classic import JoinGroupRequest
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.outcome import Event, Outcome
from fencepost.coordinator.reading import visible
from fencepost.simulation.embedded.replayed import WORLD
from fencepost.simulation.kernel.observers import Violation
from fencepost.simulation.trace.rows import Event as TraceEvent
from fencepost.simulation.trace.rows import TraceRows
from fencepost.simulation.trace.schema import Row, RowKind

KEPT_ROWS: Final = 200_000
"""Older rows of the trace are dropped."""
MOST_KNOWN: Final = 10_000
"""The limit on members whose names are kept; older ones are dropped."""
_OF_ID: Final = 8
"""Characters of a member id that a name includes: many clients share one client id."""


class MemberNames:
    """Names by member id, including members that have left."""

    def __init__(self) -> None:
        self._names: dict[MemberId, str] = {}
        self._plain: dict[MemberId, str] = {}
        """The names without a part of the member id."""
        self.name_of_host: Callable[[str], str] = lambda client_host: ""
        """Returns the name of what runs at a client's address, or an empty text: then a member has its own
        name."""
        self.names: Mapping[MemberId, str] = MappingProxyType(self._names)

    def note(self, event: Event, outcome: Outcome) -> None:
        """Take names from a coordinator's step, whose request may have the member's instance and client
        ids."""
        if isinstance(event, JoinGroupRequest):
            self._call(event.member_id, event.instance_id, event.client_id, event.client_host)
        for record in outcome.records:
            key, value = record.key, record.value
            if isinstance(value, r.GroupMetadataValue):
                for member in value.members:
                    self._call(member.member_id, member.instance_id, member.client_id, member.client_host)
            elif isinstance(key, r.MEMBER_KEYS) and isinstance(value, r.MEMBER_VALUES):
                host = getattr(value, "client_host", "")
                self._call(key.member_id, value.instance_id, value.client_id, host)

    def told(self, text: str) -> str:
        """Return a text with names in place of member ids."""
        for member_id in sorted((each for each in self._names if each in text), key=len, reverse=True):
            text = text.replace(member_id, self._short(member_id))
        return text

    def _short(self, member_id: MemberId) -> str:
        """Return the plain name, if no other member has had it."""
        name = self._names[member_id]
        plain = self._plain[member_id]
        return plain if sum(each == plain for each in self._plain.values()) < 2 else name

    def _call(self, member_id: MemberId, instance_id: str | None, client_id: str, client_host: str) -> None:
        client = instance_id or client_id
        name = self.name_of_host(client_host) or client
        if not member_id or not name or member_id in self._names:
            return
        if len(self._names) >= MOST_KNOWN:
            oldest = next(iter(self._names))
            del self._names[oldest], self._plain[oldest]
        own = member_id.removeprefix(f"{client}-")
        self._plain[member_id] = name
        self._names[member_id] = name if own == client else f"{name} {own[:_OF_ID]}"


class KeptTrace:
    """The newest `KEPT_ROWS` rows, and all violations. `now_us` is the time of the current observation."""

    def __init__(self) -> None:
        self.now_us = 0
        self.seq = 0
        """The number of the newest row."""
        self.names = MemberNames()
        self.violations: list[Violation] = []
        self.violated_by: list[str] = []
        """For each violation its group, or that whose step it was seen in; empty without one."""
        self.group = ""
        """The group whose step is being observed."""
        self.on_row: Callable[[Row], None] = lambda row: None
        """Called with each row."""
        self.fenced: set[MemberId] = set()
        """The members that a test has fenced."""
        self._rows: deque[Row] = deque(maxlen=KEPT_ROWS)
        self._start_ms: int | None = None

    @property
    def rows(self) -> Sequence[Row]:
        """The rows that are kept."""
        return self._rows

    def set_time(self, now_ms: int) -> None:
        """Set the current time; it counts from the first time that was set."""
        if self._start_ms is None:
            self._start_ms = now_ms
        self.now_us = (now_ms - self._start_ms) * 1_000

    def keep(self, group: str, event: TraceEvent) -> None:
        """Append a row. Time in the trace never goes back, although a late timer has its own time."""
        self.seq += 1
        t_us = max(event[0], self._rows[-1].t_us) if self._rows else event[0]
        row = Row(self.seq, t_us, WORLD, group, *event[1:])
        self._rows.append(row)
        self.on_row(row)

    def note(
        self, actor: str, kind: RowKind, state_to: str, group: str, detail: str, *, error: str = ""
    ) -> None:
        """Append a row that belongs to no step of a coordinator. Its detail may be any text of a test."""
        self.keep(group, (self.now_us, actor, kind.value, "", state_to, -1, -1, (), error, visible(detail)))

    def report(self, group: str, invariant: str, message: str, /, rule: str = "") -> None:
        """Append a violation with a row of its own. Its message has names of members in place of ids."""
        message = self.names.told(message)
        self.violated_by.append(group or self.group)
        self.violations.append(
            Violation(invariant=invariant, seq=self.seq, t_us=self.now_us, message=message, rule=rule)
        )
        self.keep(group, (self.now_us, "", RowKind.VIOLATION.value, "", "", -1, -1, (), invariant, message))


class KeptGroupRows(TraceRows):
    """Passes the rows of one group to the common trace."""

    __slots__ = ("_group", "_keep")

    def __init__(self, group: str, trace: KeptTrace) -> None:
        super().__init__(world=WORLD, group=group)
        self._group = group
        self._keep = trace.keep

    def append(self, event: TraceEvent) -> None:
        """Append one row."""
        self._keep(self._group, event)
