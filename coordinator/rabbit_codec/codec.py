"""Frames to bytes and back: readers and writers made from the frames' own annotations."""

from __future__ import annotations

import functools
import inspect
import struct
from typing import Any, Final, get_type_hints

from fencepost.coordinator.codec.framing import FrameBuffer, MalformedFrame
from fencepost.coordinator.rabbit_codec import frames
from fencepost.coordinator.rabbit_codec.base import Frame
from fencepost.coordinator.rabbit_codec.fields import Field

__all__ = ["INITIAL_FRAME_MAX", "MalformedFrame", "UnknownFrame", "decode", "encode", "frame_buffer"]

INITIAL_FRAME_MAX: Final = 8192
"""The longest frame before Open succeeded; RabbitMQ's `stream.initial_frame_max`."""

_HEADER = struct.Struct(">HH")
_SIZED_HEADER = struct.Struct(">IHH")
_RESPONSE_BIT = 0x8000


class UnknownFrame(MalformedFrame):
    """A frame of an unknown key or version."""


def frame_buffer(max_bytes: int = INITIAL_FRAME_MAX) -> FrameBuffer:
    """Return a buffer that cuts a socket's bytes into frames."""
    return FrameBuffer(max_bytes, protocol="RabbitMQ streams")


def decode(data: bytes) -> Frame:
    """Return a frame from its bytes, without the length before them.

    :raises UnknownFrame: for a key or a version that is not known.
    :raises MalformedFrame: if it ends too early or too late, or has an invalid content.
    """
    if len(data) < _HEADER.size:
        raise MalformedFrame(f"frame of {len(data)} bytes, a header has {_HEADER.size}")
    head = _HEADER.unpack_from(data)
    frame_type = _TYPES.get(head)
    if frame_type is None:
        raise UnknownFrame(f"frame {head[0]:#06x} version {head[1]} is not spoken here")
    at, values = _HEADER.size, []
    try:
        for field in _fields(frame_type):
            value, at = field.read(data, at)
            values.append(value)
    except struct.error:
        raise MalformedFrame(f"{frame_type.__name__} ends early, after {len(data)} bytes") from None
    if at != len(data):
        raise MalformedFrame(f"{frame_type.__name__} of {at} bytes in a frame of {len(data)}")
    return frame_type(*values)


def encode(frame: Frame) -> bytes:
    """Return a frame's bytes, with their length before them."""
    frame_type = type(frame)
    out: list[bytes] = [b""]
    for name, field in zip(frame_type.__struct_fields__, _fields(frame_type), strict=True):
        field.write(getattr(frame, name), out)
    out[0] = _SIZED_HEADER.pack(sum(map(len, out)) + _HEADER.size, _number(frame_type), frame_type.version)
    return b"".join(out)


def _number(frame_type: type[Frame]) -> int:
    return frame_type.key | (_RESPONSE_BIT if frame_type.is_response else 0)


@functools.cache
def _fields(frame_type: type[Frame]) -> tuple[Field, ...]:
    hints: dict[str, Any] = get_type_hints(frame_type, include_extras=True)
    return tuple(hints[name].__metadata__[0] for name in frame_type.__struct_fields__)


_TYPES: Final[dict[tuple[int, ...], type[Frame]]] = {
    (_number(each), each.version): each
    for _, each in inspect.getmembers(frames, inspect.isclass)
    if issubclass(each, Frame) and hasattr(each, "key")
}
