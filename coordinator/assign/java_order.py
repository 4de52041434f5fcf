"""The orders in which Kafka's tables and queues hand out their entries, because these orders decide ties.

An assignor that walks a hash map gives its first task to the first entry. To give the same tasks to the same
members as Kafka does, the order must be Kafka's: that of the Java standard library, and of the tables that a
coordinator keeps its groups in.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")

_LOAD_FACTOR = 0.75
_UTF_16 = f"utf-16-{'le' if sys.byteorder == 'little' else 'be'}"
_FIBONACCI = -7046029254386353131 & (2**64 - 1)


def string_hash(text: str) -> int:
    """Return the hash code of a Java string, as a signed 32-bit number."""
    code = 0
    for unit in memoryview(text.encode(_UTF_16, "surrogatepass")).cast("H"):
        code = (31 * code + unit) & 0xFFFFFFFF
    return code - 2**32 if code >= 2**31 else code


def offsets_partition(group_id: str, partitions: int) -> int:
    """Return the partition of `__consumer_offsets` that holds the group: Java's hash of its id, unsigned."""
    code = string_hash(group_id)
    return (0 if code == -(1 << 31) else abs(code)) % partitions


def hash_map_order(keys: Iterable[str], capacity: int = 16) -> list[str]:
    """Return keys in the order of a java.util.HashMap, put in the order given into a table of that capacity
    or more.

    Buckets of eight or more keys are ordered like shorter ones. In Java they differ only if their keys
    collide.
    """
    found = list(dict.fromkeys(keys))
    size = 1
    while size < capacity or len(found) > size * _LOAD_FACTOR:
        size *= 2
    return sorted(found, key=lambda key: _spread(string_hash(key)) & (size - 1))


def _spread(code: int) -> int:
    return code ^ ((code & 0xFFFFFFFF) >> 16)


def timeline_order(keys: Iterable[str]) -> list[str]:
    """Return keys in the order of a table of Kafka's coordinators that never held more keys."""
    found = list(dict.fromkeys(keys))
    size = 2
    while len(found) * _LOAD_FACTOR > size:
        size *= 2
    shift = 65 - size.bit_length()
    return sorted(found, key=lambda key: (string_hash(key) * _FIBONACCI & (2**64 - 1)) >> shift)


class PriorityQueue(Generic[T]):
    """java.util.PriorityQueue: its structure decides which of the items with the least key comes first.

    A key may change only while its item is not in the queue.
    """

    __slots__ = ("_items", "_key")

    def __init__(self, items: Iterable[T], key: Callable[[T], float]) -> None:
        self._items: list[T] = []
        self._key = key
        for item in items:
            self.add(item)

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: T) -> None:
        """Put an item in."""
        items, key = self._items, self._key
        at, own = len(items), key(item)
        items.append(item)
        while at > 0:
            parent = (at - 1) // 2
            if own >= key(items[parent]):
                break
            items[at] = items[parent]
            at = parent
        items[at] = item

    def poll(self) -> T:
        """Take the first item.

        :raises IndexError: if the queue is empty.
        """
        items, key = self._items, self._key
        first, item = items[0], items.pop()
        size = len(items)
        if size == 0:
            return first
        at, own = 0, key(item)
        while at < size // 2:
            child = 2 * at + 1
            if child + 1 < size and key(items[child]) > key(items[child + 1]):
                child += 1
            if own <= key(items[child]):
                break
            items[at] = items[child]
            at = child
        items[at] = item
        return first
