"""A machine as a value: equal for equal states, to be hashed, kept, and made a machine again.

Times are stored as distances from now, and tokens are numbered in the order of their appearance. So a member
that did the same a minute later is in the same state.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

import msgspec

Frozen: TypeAlias = Any
"""A tree of tuples and of immutable values."""

_MOMENTS: Final = frozenset(
    {
        "_idle_until_ms",
        "_other_deadline_ms",
        "at_ms",
        "deadline_ms",
        "next_auto_ms",
        "not_before_ms",
        "retry_at_ms",
    }
)
"""Attributes that hold a time. A past time is due, however long ago it was."""
_LENGTHS: Final = frozenset(
    {"_initial_ms", "_max_ms", "heartbeat_interval_ms", "interval_ms", "rebalance_timeout_ms"}
)
"""Attributes that hold a length of time."""
_NEAR_MS: Final = 5_000
"""Up to this distance, an interval of heartbeats, times are stored exactly, in ms."""
_FAR_MS: Final = 30_000
_FARTHEST_MS: Final = 300_000
"""Beyond this distance a moment comes no nearer while heartbeats are sent: it may come after any of them."""
_TOKENS: Final = frozenset({"commit_id", "fetch_in_flight", "in_flight", "reset_in_flight", "token"})
"""Attributes that name a request, or a callback, until it is over."""


class FrozenTokens:
    """Counts the tokens of one machine, in place of the counter with which it was made."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self.last += 1
        return self.last


class Interned:
    """An immutable object that is met again and again; one stands for all that are equal."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


class _Link(enum.Enum):
    """The meaning of a marked tuple in a frozen tree; any other tuple stands for a tuple."""

    AGAIN = enum.auto()
    DICT = enum.auto()
    LIST = enum.auto()
    OBJECT = enum.auto()
    TOKENS = enum.auto()
    VALUE = enum.auto()

    __hash__ = object.__hash__


_AGAIN, _DICT, _LIST, _OBJECT, _COUNTER, _VALUE = _Link
_ATOMS: Final = (int, str, bytes, float, type(None), enum.Enum, type, frozenset)
_ATOMIC: Final[set[type]] = set()
"""Classes of them that were met."""


class Freezer:
    """Makes values of objects, and objects of values. `constants` are parts that never change."""

    def __init__(self, constants: Sequence[object] = ()) -> None:
        self._by_key: dict[Frozen, Interned] = {}
        self.known: dict[int, Interned] = {id(constant): Interned(constant) for constant in constants}
        """Objects that were met before, by `id`."""

    def freeze(self, root: object, now_ms: int = 0) -> Frozen:
        """Return the state of an object and of everything in it, at that time.

        :raises TypeError: if there is something in it that can't be stored.
        """
        return _Telling(self, now_ms).of(root)

    def thaw(self, root: Frozen) -> Any:
        """Return the object that was frozen, as it is at the time 0."""
        return _Building().of(root)

    def keep(self, key: Frozen, value: object) -> Interned:
        """Return the object that stands for all that are equal to `value`; `key` identifies it fully."""
        known = self._by_key.get(key)
        if known is None:
            known = self._by_key[key] = self.known[id(value)] = Interned(value)
        return known


class _Telling:
    """One tree under construction."""

    __slots__ = ("_freezer", "_known", "_now_ms", "_seen", "_tokens")

    def __init__(self, freezer: Freezer, now_ms: int) -> None:
        self._freezer = freezer
        self._known = freezer.known
        self._now_ms = now_ms
        self._seen: dict[int, int] = {}
        self._tokens: dict[int, int] = {}

    def of(self, value: Any) -> Frozen:
        kind = type(value)
        if kind in _ATOMIC:
            return value
        if kind is tuple:
            return tuple([each if type(each) in _ATOMIC else self.of(each) for each in value])
        known = self._known.get(id(value))
        if known is not None:
            return known
        if kind is dict:
            return _DICT, tuple([(self.of(key), self.of(each)) for key, each in value.items()])
        if kind is list:
            return _LIST, tuple([self.of(each) for each in value])
        if kind is FrozenTokens:
            return (_COUNTER,)
        if isinstance(value, (*_ATOMS, tuple)):
            _ATOMIC.add(kind)
            return value
        return self._of_attributes(value, kind)

    def _of_attributes(self, value: Any, kind: type) -> Frozen:
        if issubclass(kind, msgspec.Struct) and kind.__struct_config__.frozen:
            if _plan(kind).tokens:
                return _VALUE, kind, self._attributes(value)
            return self._freezer.keep((kind, self._attributes(value)), value)
        number = self._seen.get(id(value))
        if number is not None:
            return _AGAIN, number
        self._seen[id(value)] = len(self._seen)
        return _OBJECT, kind, self._attributes(value)

    def _attributes(self, value: Any) -> tuple[Frozen, ...]:
        plan = _plan(type(value))
        found = [each if type(each) in _ATOMIC else self.of(each) for each in plan.values(value)]
        now_ms, tokens = self._now_ms, self._tokens
        for at in plan.moments:
            if (moment := found[at]) is not None:
                found[at] = _distance(moment - now_ms)
        for at in plan.tokens:
            if (token := found[at]) is not None:
                found[at] = tokens.setdefault(token, len(tokens) + 1)
        return tuple(found)


class _Building:
    """One object under construction."""

    __slots__ = ("_objects", "_tokens")

    def __init__(self) -> None:
        self._objects: list[Any] = []
        self._tokens = FrozenTokens()

    def of(self, value: Frozen) -> Any:
        if type(value) is Interned:
            return value.value
        if type(value) is not tuple:
            return value
        build = self._BUILD.get(value[0]) if value and type(value[0]) is _Link else None
        return tuple([self.of(each) for each in value]) if build is None else build(self, value)

    def _dict(self, value: Frozen) -> Any:
        return {self.of(key): self.of(each) for key, each in value[1]}

    def _list(self, value: Frozen) -> Any:
        return [self.of(each) for each in value[1]]

    def _again(self, value: Frozen) -> Any:
        return self._objects[value[1]]

    def _counter(self, value: Frozen) -> Any:
        return self._tokens

    def _value(self, value: Frozen) -> Any:
        _, kind, values = value
        return kind(*self._attributes(kind, values))

    def _object(self, value: Frozen) -> Any:
        _, kind, values = value
        built = kind() if issubclass(kind, msgspec.Struct) else kind.__new__(kind)
        self._objects.append(built)
        for name, each in zip(_plan(kind).names, self._attributes(kind, values), strict=True):
            setattr(built, name, each)
        return built

    def _attributes(self, kind: type, values: tuple[Frozen, ...]) -> list[Any]:
        for at in _plan(kind).tokens:
            if (token := values[at]) is not None and token > self._tokens.last:
                self._tokens.last = token
        return [
            self.of(each) if type(each) is tuple else each.value if type(each) is Interned else each
            for each in values
        ]

    _BUILD: ClassVar[Mapping[_Link, Callable[[_Building, Frozen], Any]]] = {
        _AGAIN: _again,
        _COUNTER: _counter,
        _DICT: _dict,
        _LIST: _list,
        _OBJECT: _object,
        _VALUE: _value,
    }


def _distance(length_ms: int) -> int:
    """Return the distance of a moment: 0 if it is past, and one of few lengths if it is not near."""
    if length_ms <= 0:
        return 0
    return length_ms if length_ms <= _NEAR_MS else _FAR_MS if length_ms <= _FAR_MS else _FARTHEST_MS


class _Plan(NamedTuple):
    """The attributes of a class, its bases' first, and those of them that are not stored as they are."""

    names: tuple[str, ...]
    values: Callable[[Any], tuple[Any, ...]]
    moments: tuple[int, ...]
    tokens: tuple[int, ...]


_PLANS: dict[type, _Plan] = {}


def _plan(kind: type) -> _Plan:
    plan = _PLANS.get(kind)
    if plan is None:
        plan = _PLANS[kind] = _planned(slots_of(kind))
    return plan


def _planned(names: tuple[str, ...]) -> _Plan:
    for name in names:
        if name.endswith("_ms") and name not in _MOMENTS | _LENGTHS:
            raise TypeError(f"{name}: is it a moment or a length of time?")
    getter = attrgetter(*names)
    values = getter if len(names) > 1 else lambda value: (getter(value),)
    moments = tuple([at for at, name in enumerate(names) if name in _MOMENTS])
    tokens = tuple([at for at, name in enumerate(names) if name in _TOKENS])
    return _Plan(names, values, moments, tokens)


def slots_of(kind: type) -> tuple[str, ...]:
    """Return the attributes of a class that lists them, its bases' first.

    :raises TypeError: if it lists none.
    """
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    listed = (vars(each).get("__slots__", ()) for each in reversed(kind.__mro__))
    names = tuple(itertools.chain.from_iterable(listed))
    if not names:
        raise TypeError(f"{kind.__qualname__} has no slots that show its state")
    return names
