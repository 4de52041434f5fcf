"""Judges a service by what it writes: for each record of its input topic, a record of its output topic.

Inputs and outputs are matched by an identity that the test names. It needs no report by the program.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.embedded.logs import ReadRecord
from fencepost.simulation.world.substitutes import EPOCH_S

OUTPUT_WRITTEN: Final = "output-written"
OUTPUT_ONCE: Final = "output-once"
OUTPUT_ORDER: Final = "output-order"
OUTPUT_KNOWN: Final = "output-known"
_CLAIMS: Final = ("at-least-once", "exactly-once", "order")
"""The claims about outputs, which have the names of those about records that are done."""

Identity: TypeAlias = Callable[[ReadRecord], Any]
_Place: TypeAlias = tuple[int, int]


class Sides(NamedTuple):
    """The records of both topics as `read_committed` consumers get them, without copies of brokers."""

    inputs: Sequence[ReadRecord]
    outputs: Sequence[ReadRecord]


class OutputRule:
    """The rule between an input and an output topic.

    `read` returns the records, and `state` a value that changes if they do. `writer` returns the name of the
    program that sent a record.
    """

    def __init__(
        self,
        topic: str,
        source: str,
        key: Identity | None,
        of_key: Identity | None,
        claims: Iterable[str],
        *,
        read: Callable[[], Sides],
        state: Callable[[], object],
        writer: Callable[[ReadRecord], str],
    ) -> None:
        self._topic = topic
        self._source = source
        self._key = _identity("key", key)
        self._of_key = self._key if of_key is None else _identity("of_key", of_key)
        self._claims = frozenset([claims] if isinstance(claims, str) else claims)
        if unknown := self._claims.difference(_CLAIMS):
            raise FencepostError(
                f"outputs({topic!r}): {min(unknown)!r} is no claim, expected some of {', '.join(_CLAIMS)}"
            )
        self._read = read
        self._state = state
        self._writer = writer
        self._seen: object = None
        self._is_complete = True

    def is_complete(self) -> bool:
        """Return true if no output is missing now."""
        if "at-least-once" not in self._claims:
            return True
        if (state := self._state()) != self._seen:
            self._seen = state
            sides = self._read()
            self._is_complete = not self._missing(self._by(sides.inputs, self._of_key), sides.outputs)
        return self._is_complete

    def judge(self) -> Iterator[tuple[str, str]]:
        """Yield the invariants that do not hold, each with a message."""
        sides = self._read()
        inputs = self._by(sides.inputs, self._of_key)
        outputs = self._by(sides.outputs, self._key)
        missing = self._missing(inputs, sides.outputs) if "at-least-once" in self._claims else []
        if missing:
            yield (
                OUTPUT_WRITTEN,
                f"{len(missing)} of {len(inputs)} records of {self._source} have no record in {self._topic}: "
                f"{_some(missing)}",
            )
        unknown = [records[0] for identity, records in outputs.items() if identity not in inputs]
        if unknown:
            yield (
                OUTPUT_KNOWN,
                f"{len(unknown)} records of {self._topic} belong to no record of {self._source}: "
                f"{_some(unknown)}, {self._wrote(unknown[0])}",
            )
        if "exactly-once" in self._claims:
            yield from self._twice(inputs, outputs)
        if "order" in self._claims:
            yield from self._out_of_order(inputs, outputs)

    def _twice(
        self, inputs: Mapping[Hashable, list[ReadRecord]], outputs: Mapping[Hashable, list[ReadRecord]]
    ) -> Iterator[tuple[str, str]]:
        found = [
            (records, inputs[identity])
            for identity, records in outputs.items()
            if identity in inputs and len(records) > len(inputs[identity])
        ]
        if found:
            records, of = found[0]
            yield (
                OUTPUT_ONCE,
                f"{self._topic} has {len(records)} records for {name_of(of[0])}"
                + (f" and {len(of) - 1} more of the same identity" if len(of) > 1 else "")
                + f": {', '.join(f'{name_of(each)} {self._wrote(each)}' for each in records[:3])}"
                + (f"; and {len(found) - 1} more are there too often" if len(found) > 1 else ""),
            )

    def _out_of_order(
        self, inputs: Mapping[Hashable, list[ReadRecord]], outputs: Mapping[Hashable, list[ReadRecord]]
    ) -> Iterator[tuple[str, str]]:
        """Compare the first outputs of inputs of one key, if they are in one partition."""
        last: dict[tuple[int, bytes, int], tuple[ReadRecord, ReadRecord]] = {}
        for identity, records in inputs.items():
            first, written = records[0], outputs.get(identity)
            if first.key is None or not written:
                continue
            place = (first.partition, first.key, written[0].partition)
            before = last.get(place)
            if before is not None and written[0].offset < before[1].offset:
                yield (
                    OUTPUT_ORDER,
                    f"{name_of(first)} has the same key as {name_of(before[0])}, and its record in "
                    f"{self._topic} is before the other's: {name_of(written[0])} "
                    f"{self._wrote(written[0])}, {name_of(before[1])} {self._wrote(before[1])}",
                )
                return
            last[place] = first, written[0]

    def _missing(
        self, inputs: Mapping[Hashable, list[ReadRecord]], outputs: Iterable[ReadRecord]
    ) -> list[ReadRecord]:
        written = {self._key(each) for each in outputs}
        return [records[0] for identity, records in inputs.items() if identity not in written]

    def _by(self, records: Iterable[ReadRecord], key: Identity) -> dict[Hashable, list[ReadRecord]]:
        found: dict[Hashable, list[ReadRecord]] = {}
        for each in records:
            found.setdefault(key(each), []).append(each)
        return found

    def _wrote(self, record: ReadRecord) -> str:
        at_s = record.timestamp_ms / 1e3 - EPOCH_S
        writer = self._writer(record)
        return f"(written at {at_s:.3f} s{f' by {writer}' if writer else ''})"


def _identity(name: str, key: Any) -> Identity:
    if key is None:
        return _key_of
    if not callable(key) or inspect.iscoroutinefunction(key):
        raise FencepostError(
            f"outputs({name}={key!r}): expected a function that takes a record and returns what identifies it"
        )

    def identify(record: ReadRecord) -> Hashable:
        found: Hashable = key(record)
        try:
            hash(found)
        except TypeError:
            raise FencepostError(
                f"outputs({name}=...): the function returns {found!r} for {name_of(record)}; expected text, "
                "bytes, a number, or a tuple of these"
            ) from None
        return found

    return identify


def _key_of(record: ReadRecord) -> Hashable:
    if record.key is None:
        raise FencepostError(
            f"outputs(): {name_of(record)} has no key, so nothing says which records belong together; name a "
            "function of a record that does, as in key=lambda record: record.value"
        )
    return record.key


def name_of(record: ReadRecord) -> str:
    """Return a record's place, as messages have it."""
    return f"{record.topic}-{record.partition} offset {record.offset}"


def _some(records: Sequence[ReadRecord]) -> str:
    return ", ".join(map(name_of, records[:5])) + (", ..." if len(records) > 5 else "")
