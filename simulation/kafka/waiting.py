"""Requests that a coordinator does not answer at once: JoinGroup and SyncGroup wait for other members."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from fencepost.coordinator.protocol.classic import JoinGroupRequest, SyncGroupRequest
from fencepost.coordinator.protocol.outcome import ParkedResponse
from fencepost.simulation.kernel.network import Call
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


class WaitingCalls:
    """The calls of one broker that wait, by their tokens."""

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: dict[int, Call] = {}

    def add(self, token: int, call: Call) -> None:
        """The answer to this call comes later, if it does before the member gives it up."""
        self._calls[token] = call
        call.connection.network.wait(call)

    def answer(self, answer: ParkedResponse, ready_us: int) -> None:
        """Send an answer; nobody may be there any more."""
        call = self._calls.pop(answer.token, None)
        if call is not None:
            call.answer(answer.response, ready_us)

    def clear(self) -> None:
        """Nobody will be answered."""
        self._calls.clear()
