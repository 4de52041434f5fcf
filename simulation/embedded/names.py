"""What members are called by people: by their instance or client ids, where the trace has member ids."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.classic import JoinGroupRequest
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.outcome import Event, Outcome
from fencepost.coordinator.protocol.streams_records import (
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
)

MOST_KNOWN: Final = 10_000
"""Of older members nothing is known any more."""
_OF_ID: Final = 8
"""Characters of a member id: many clients share one client id."""
_KEYS: Final = (r.ConsumerGroupMemberMetadataKey, StreamsGroupMemberMetadataKey)
_VALUES: Final = (r.ConsumerGroupMemberMetadataValue, StreamsGroupMemberMetadataValue)


class MemberNames:
    """Names by member id, also of members that are gone."""

    def __init__(self) -> None:
        self._names: dict[MemberId, str] = {}
        self.names: Mapping[MemberId, str] = MappingProxyType(self._names)

    def hear(self, event: Event, outcome: Outcome) -> None:
        """A step of a coordinator, in which members may tell their ids."""
        if isinstance(event, JoinGroupRequest):
            self._call(event.member_id, event.instance_id, event.client_id)
        for record in outcome.records:
            key, value = record.key, record.value
            if isinstance(value, r.GroupMetadataValue):
                for member in value.members:
                    self._call(member.member_id, member.instance_id, member.client_id)
            elif isinstance(key, _KEYS) and isinstance(value, _VALUES):
                self._call(key.member_id, value.instance_id, value.client_id)

    def _call(self, member_id: MemberId, instance_id: str | None, client_id: str) -> None:
        name = instance_id or client_id
        if not member_id or not name or member_id in self._names:
            return
        if len(self._names) >= MOST_KNOWN:
            del self._names[next(iter(self._names))]
        own = member_id.removeprefix(f"{name}-")
        self._names[member_id] = name if own == name else f"{name} {own[:_OF_ID]}"
