"""Requests that a coordinator does not answer at once: JoinGroup and SyncGroup wait for other members."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from fencepost.coordinator.protocol.classic import JoinGroupRequest, SyncGroupRequest
from fencepost.simulation.kernel.rng import Streams

MAY_WAIT: Final = frozenset({JoinGroupRequest, SyncGroupRequest})


class ArrivalTokens:
    """What brokers give to requests on arrival: a number, and the id of a member that has none yet."""

    __slots__ = ("_last", "_streams")

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._last = 0

    def stamp(self, request: Any) -> Any:
        """The request with its number; no two requests have the same."""
        self._last += 1
        if isinstance(request, SyncGroupRequest):
            return msgspec.structs.replace(request, token=self._last)
        suffix = self._streams.uuid(f"joiner/{self._last}") if not request.member_id else ""
        return msgspec.structs.replace(request, token=self._last, new_member_suffix=suffix)
