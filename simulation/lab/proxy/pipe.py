"""One direction of a connection: messages on their way, each not before its time, some of them spoiled."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import struct
from collections import deque
from collections.abc import Callable

from fencepost.simulation.kernel.rules import Damage, NetworkRule
from fencepost.simulation.lab.proxy.exchange import ProxyExchange

_SIZE = struct.Struct(">i")
_COPIED_BYTES = 65_536
"""Maximum size at which a message and its length are one write; above it a copy costs more."""
_SLICE_SECONDS = 0.05
_CLOCK_SECONDS = 1e-6
"""A shorter time counts as no time."""
_LOOK_SECONDS = 0.02
"""Interval at which a stalled pipe looks whether its rule is still there, in seconds."""


def with_length(frame: bytes) -> bytes:
    """Return a frame as it goes over the wire."""
    return _SIZE.pack(len(frame)) + frame


@dataclasses.dataclass(slots=True, eq=False)
class Parcel:
    """A message under way.

    `ready_s` is the earliest time on the loop's clock. `bytes_per_second` 0 means at once. `held_by` is the
    rule that must be gone first. `instead` are the bytes, with their length, that are sent in place of the
    frame.
    """

    frame: bytes
    exchange: ProxyExchange
    _: dataclasses.KW_ONLY
    ready_s: float = 0.0
    bytes_per_second: int = 0
    held_by: NetworkRule | None = None
    instead: bytes | None = None
    sent: int = 0

    def __post_init__(self) -> None:
        if self.bytes_per_second:
            self.instead = with_length(self.frame)


class Pipe:
    """Carries messages to `transport`, which may come later.

    `on_sent` is called for each message once its last byte was handed to the socket, `on_lifted` when a stall
    ends, and `on_drained` once, after `finish`, when nothing is under way any more.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        is_in_force: Callable[[NetworkRule], bool],
        on_sent: Callable[[Parcel], None],
        on_lifted: Callable[[], None],
        on_drained: Callable[[], None],
    ) -> None:
        self.transport: asyncio.Transport | None = None
        self.size = 0
        """Bytes under way."""
        self.stalled = False
        self.open = True
        self._loop = loop
        self._is_in_force = is_in_force
        self._on_sent = on_sent
        self._on_lifted = on_lifted
        self._on_drained = on_drained
        self._parcels: deque[Parcel] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._finishing = False

    def put(self, parcel: Parcel) -> None:
        """Send a message behind those that are under way."""
        if (
            not self._parcels
            and self.transport is not None
            and parcel.held_by is None
            and not parcel.ready_s
            and not parcel.bytes_per_second
        ):
            self._write(parcel)
            return
        self._parcels.append(parcel)
        self.size += len(parcel.frame)
        self.stalled = self.stalled or parcel.held_by is not None
        self.pump()

    def pump(self) -> None:
        """Send what may be sent now, and come back for the rest."""
        self._disarm()
        while self._parcels and self.transport is not None:
            delay_s = self._advance(self._parcels[0])
            if delay_s > 0:
                self._disarm()  # what came in meanwhile was pumped as well
                self._timer = self._loop.call_later(delay_s, self.pump)
                return
        if not self._parcels and self._finishing and self.open:
            self.open = False
            self._on_drained()

    def finish(self) -> None:
        """Let nothing follow what is under way."""
        self._finishing = True
        self.pump()

    def clear(self) -> list[ProxyExchange]:
        """Carry nothing any more; return the messages that are lost by that."""
        self.open = False
        self.stalled = False
        self.size = 0
        self._disarm()
        lost = [parcel.exchange for parcel in self._parcels]
        self._parcels.clear()
        return lost

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _advance(self, parcel: Parcel) -> float:
        """Return the seconds until this message, the first, has more to do; 0 once it was sent."""
        if parcel.held_by is not None and self._is_in_force(parcel.held_by):
            return _LOOK_SECONDS
        wait = parcel.ready_s - self._loop.time()
        if wait > _CLOCK_SECONDS:
            return wait
        if parcel.bytes_per_second and (pause := self._trickle(parcel)):
            return pause
        self._parcels.popleft()
        self.size -= len(parcel.frame)
        if parcel.bytes_per_second:
            self._on_sent(parcel)
        else:
            self._write(parcel)
        if parcel.held_by is not None:
            self.stalled = False
            self._on_lifted()
        return 0.0

    def _trickle(self, parcel: Parcel) -> float:
        """Send as much as one slice of time allows; return 0 when nothing is left."""
        assert self.transport is not None
        assert parcel.instead is not None
        count = max(1, int(parcel.bytes_per_second * _SLICE_SECONDS))
        piece = parcel.instead[parcel.sent : parcel.sent + count]
        if not piece:
            return 0.0
        self.transport.write(piece)
        parcel.sent += len(piece)
        pause = len(piece) / parcel.bytes_per_second
        parcel.ready_s = self._loop.time() + pause
        return pause

    def _write(self, parcel: Parcel) -> None:
        assert self.transport is not None
        frame = parcel.frame
        if parcel.instead is not None:
            self.transport.write(parcel.instead)
        elif len(frame) <= _COPIED_BYTES:
            self.transport.write(with_length(frame))
        else:
            self.transport.write(_SIZE.pack(len(frame)))
            self.transport.write(frame)
        self._on_sent(parcel)


_MOST_FLIPS = 4


def spoiled(frame: bytes, damage: Damage, rng: random.Random) -> bytes:
    """Return the bytes that go over the wire in place of the frame and its length."""
    match damage:
        case Damage.FLIP:
            data = bytearray(frame)
            for _ in range(rng.randint(1, _MOST_FLIPS) if data else 0):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            # An even number of flips may have met in one bit.
            return with_length(bytes(data) if data != frame else frame[:-1] + bytes((frame[-1] ^ 1,)))
        case Damage.TRUNCATE:
            return with_length(frame[: rng.randrange(len(frame))])
        case Damage.LENGTH:
            size = len(frame)
            wrong = rng.choice((-1, 0, size - 1, size + 1, size * 2 + 8, 0x7FFFFFFF))
            return wrong.to_bytes(4, "big", signed=True) + frame
