"""Primitives for messages that are packed by hand; the compact ones are of flexible versions (KIP-482)."""

from __future__ import annotations


def unsigned_varint(value: int) -> bytes:
    """An unsigned variable-length integer."""
    if value < 0x80:
        return bytes((value,))
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def compact_string(text: str | None) -> bytes:
    """A compact nullable string."""
    if text is None:
        return b"\x00"
    raw = text.encode()
    return unsigned_varint(len(raw) + 1) + raw


def string(text: str | None) -> bytes:
    """A nullable string."""
    if text is None:
        return b"\xff\xff"
    raw = text.encode()
    return len(raw).to_bytes(2, "big") + raw
