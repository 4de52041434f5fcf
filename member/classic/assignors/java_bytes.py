"""Bytes as Java writes them: big-endian numbers, modified UTF-8, and the order of its hash tables."""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T", bound=Hashable)

_SMALLEST_TABLE = 16
_LONGEST_TEXT = 0xFFFF


class MalformedUserData(ValueError):
    """Bytes that are not what Kafka Streams puts there."""


class JavaBytesReader:
    """Takes values from the front of bytes, and never more than are left."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        """Return that many bytes.

        :raises MalformedUserData: if fewer are left.
        """
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise MalformedUserData(f"{size} bytes at {self._at} are not in {len(self._data)} bytes")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def number(self, size: int) -> int:
        """Return a signed number of that many bytes."""
        return int.from_bytes(self.take(size), "big", signed=True)

    def int32(self) -> int:
        """Return a signed number of four bytes."""
        return self.number(4)

    def count(self, smallest: int) -> int:
        """Read the number of the elements that follow, each of at least `smallest` bytes.

        :raises MalformedUserData: if the data is too short for them.
        """
        count = self.int32()
        if not 0 <= count * smallest <= len(self._data) - self._at:
            raise MalformedUserData(f"{count} elements at {self._at} are not in {len(self._data)} bytes")
        return count

    def text(self) -> str:
        """Return a text in modified UTF-8, with its length in two bytes.

        :raises MalformedUserData: if the data is different.
        """
        raw = self.take(int.from_bytes(self.take(2), "big"))
        try:
            units = raw.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
            return units.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")
        except UnicodeDecodeError as error:
            raise MalformedUserData(f"no modified UTF-8: {error}") from error


def int32(value: int) -> bytes:
    """Return the bytes of a signed number of four bytes."""
    return struct.pack(">i", value)


def modified_utf8(text: str) -> bytes:
    """Return the bytes of Java's DataOutput.writeUTF: surrogates and NUL each on their own, after the length.

    :raises ValueError: if it takes more than 65,535 bytes.
    """
    units = text.encode("utf-16-be", "surrogatepass")
    alone = "".join(map(chr, struct.unpack(f">{len(units) // 2}H", units)))
    raw = alone.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")
    if len(raw) > _LONGEST_TEXT:
        raise ValueError(f"text of {len(raw)} bytes, expected at most {_LONGEST_TEXT}")
    return struct.pack(">H", len(raw)) + raw


def hash_of_text(text: str) -> int:
    """Return String.hashCode, as an unsigned number of 32 bits."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for unit in struct.unpack(f">{len(units) // 2}H", units):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value


def in_hash_order(elements: Iterable[T], hash_of: Callable[[T], int]) -> list[T]:
    """Return the distinct elements in the order of a HashSet to which they were added one by one.

    Buckets with eight elements or more, which Java turns into trees, are not treated differently.
    """
    distinct = list(dict.fromkeys(elements))
    size = _SMALLEST_TABLE
    while 4 * len(distinct) > 3 * size:
        size *= 2

    def bucket(element: T) -> int:
        value = hash_of(element) & 0xFFFFFFFF
        return (value ^ value >> 16) & (size - 1)

    return sorted(distinct, key=bucket)
