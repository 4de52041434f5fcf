"""The rules of client quotas: which one applies to a client, and how long one above it is throttled (KIP-13,
KIP-124, KIP-546).

They follow Kafka's `ClientQuotaManager` and `ClientQuotaControlManager`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.quotas import DescribedQuota, QuotaChange, QuotaComponent

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
_OF_CLIENTS: Final = {PRODUCER_BYTE_RATE: 2**63, CONSUMER_BYTE_RATE: 2**63, REQUEST_PERCENTAGE: 0}
"""Keys of users and client ids, with the limit of whole numbers; 0 stands for fractions."""
KEYS: Final[Mapping[str, Mapping[str, int]]] = {
    "user": {**_OF_CLIENTS, "controller_mutation_rate": 0},
    "client-id": {**_OF_CLIENTS, "controller_mutation_rate": 0},
    "ip": {"connection_creation_rate": 2**31 - 1},
}
"""The keys of quotas, by type of the entity."""
WINDOWS: Final = 11
WINDOW_MS: Final = 1_000
"""Kafka's defaults of `quota.window.num` and `quota.window.size.seconds`."""
_MANY: Final = 1_000
"""Clients of which idle ones are forgotten."""


class ClientQuotas:
    """The quotas of a cluster, and what its clients have used of them lately."""

    def __init__(self) -> None:
        self._quotas: dict[frozenset[tuple[str, str | None]], dict[str, float]] = {}
        self._used: dict[tuple[str, str | None, str | None], _Rate] = {}
        self._most_used = _MANY

    @property
    def is_idle(self) -> bool:
        """True if there are no quotas."""
        return not self._quotas

    def alter(self, change: QuotaChange, *, validate_only: bool = False) -> None:
        """Change the quotas of an entity. What clients have used lately counts for the new ones too.

        :raises ProtocolError: INVALID_REQUEST for an entity, key or value that Kafka would refuse.
        """
        for message in _problems(change):
            raise ProtocolError(ErrorCode.INVALID_REQUEST, message)
        if validate_only:
            return
        entity = frozenset(dict(change.entity).items())
        values = self._quotas.setdefault(entity, {})
        for key, value, is_removed in change.ops:
            values.pop(key, None)
            if not is_removed:
                values[key] = value
        if not values:
            del self._quotas[entity]

    def _forget_idle(self, now_ms: int) -> None:
        """Forget clients without requests in all windows, since a client may change its id each time."""
        self._used = {holder: rate for holder, rate in self._used.items() if rate.is_recent(now_ms)}
        self._most_used = max(_MANY, 2 * len(self._used))

    def find(self, components: Iterable[QuotaComponent], *, strict: bool) -> list[DescribedQuota]:
        """Return the quotas whose entities meet all conditions.

        :raises ProtocolError: INVALID_REQUEST for a type that is named twice or does not fit another one, and
            UNSUPPORTED_VERSION for an unknown type.
        """
        wanted = tuple(components)
        kinds = Counter(each.entity_type for each in wanted)
        for name, times in kinds.items():
            if name not in KEYS:
                raise ProtocolError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {name}")
            if times > 1:
                raise ProtocolError(
                    ErrorCode.INVALID_REQUEST,
                    f"Entity type {name} cannot appear more than once in the filter.",
                )
        if "ip" in kinds and len(kinds) > 1:
            raise ProtocolError(
                ErrorCode.INVALID_REQUEST,
                "Invalid entity filter component combination. IP filter component should not be used with "
                "user or clientId filter component.",
            )
        found = []
        for entity, values in self._quotas.items():
            names = dict(entity)
            if all(_meets(each, names) for each in wanted) and not (strict and len(names) > len(wanted)):
                found.append(
                    DescribedQuota(entity=tuple(sorted(entity)), values=tuple(sorted(values.items())))
                )
        return found

    def throttle_ms(self, key: str, user: str, client_id: str, amount: float, now_ms: int) -> int:
        """Count what a client has used, and return for how long it is throttled, in ms."""
        limit, holder = self._limit(key, user, client_id)
        if limit is None:
            return 0
        rate = self._used.get((key, *holder))
        if rate is None:
            if len(self._used) >= self._most_used:
                self._forget_idle(now_ms)
            rate = self._used[key, *holder] = _Rate()
        return rate.throttle_ms(amount, limit, now_ms)

    def give_back(self, key: str, user: str, client_id: str, amount: float, now_ms: int) -> None:
        """Count less by what a client did not get in the end."""
        rate = self._used.get((key, *self._limit(key, user, client_id)[1]))
        if rate is not None:
            rate.add(-amount, now_ms)

    def most_in_windows(self, key: str, user: str, client_id: str) -> float:
        """Return the most that a client can use at once without being throttled."""
        limit, _ = self._limit(key, user, client_id)
        return float("inf") if limit is None else limit * (WINDOWS - 1) * WINDOW_MS / 1_000

    def _limit(
        self, key: str, user: str, client_id: str
    ) -> tuple[float | None, tuple[str | None, str | None]]:
        """Return the quota of a client, None without one, and those that share it."""
        for entity, holder in _candidates(user, client_id):
            limit = self._quotas.get(entity, {}).get(key)
            if limit is not None:
                return limit, holder
        return None, (None, None)


def _candidates(
    user: str, client_id: str
) -> Iterator[tuple[frozenset[tuple[str, str | None]], tuple[str | None, str | None]]]:
    """Yield entities that a client may belong to, the closest first, and those that share the quota."""
    for named in (user, None):
        for client in (client_id, None):
            yield frozenset({("user", named), ("client-id", client)}), (user, client_id)
        yield frozenset({("user", named)}), (user, None)
    for client in (client_id, None):
        yield frozenset({("client-id", client)}), (None, client_id)


class _Rate:
    """The amounts used in the last windows, as Kafka's Rate and SampledStat count them."""

    def __init__(self) -> None:
        self._windows: deque[tuple[int, int, float]] = deque()
        """The time of the first and of the last use in each, in ms, and the amount."""

    def is_recent(self, now_ms: int) -> bool:
        """Return true if something was used in the last windows."""
        return bool(self._windows) and self._windows[-1][1] > now_ms - WINDOWS * WINDOW_MS

    def add(self, amount: float, now_ms: int) -> None:
        """Add to what was used."""
        windows = self._windows
        while windows and windows[0][1] <= now_ms - WINDOWS * WINDOW_MS:
            windows.popleft()
        started_ms, used = now_ms, 0.0
        if windows and now_ms < windows[-1][0] + WINDOW_MS:
            started_ms, _, used = windows.pop()
        windows.append((started_ms, now_ms, used + amount))

    def throttle_ms(self, amount: float, limit: float, now_ms: int) -> int:
        """Add to what was used, and return the time after which the rate is the limit again."""
        self.add(amount, now_ms)
        length_ms = now_ms - self._windows[0][0]
        # Windows that are yet to come count as empty ones: a first burst is not a high rate.
        length_ms += max(0, WINDOWS - 1 - length_ms // WINDOW_MS) * WINDOW_MS
        excess = sum(used for *_, used in self._windows) / length_ms * 1_000 - limit
        if not excess > 0:  # it may be NaN
            return 0
        return round(min(excess / limit * length_ms, 2**31 - 1))


def _meets(wanted: QuotaComponent, names: Mapping[str, str | None]) -> bool:
    if wanted.entity_type not in names:
        return False
    return wanted.match_type == 2 or names[wanted.entity_type] == (
        wanted.match if wanted.match_type == 0 else None
    )


def _problems(change: QuotaChange) -> Iterator[str]:
    kinds = dict(change.entity)
    if not kinds:
        yield "Invalid empty client quota entity"
    for kind in kinds:
        if kind not in KEYS:
            yield f"Unhandled client quota entity type: {kind}"
    if "ip" in kinds and len(kinds) > 1:
        yield "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"
    if len({key for key, _, _ in change.ops}) < len(change.ops):
        named = ", ".join(f"{kind}={name}" for kind, name in kinds.items())
        yield f"Ignoring duplicate entity ClientQuotaEntity(entries={{{named}}})"
    for key, value, is_removed in change.ops:
        if not is_removed:
            yield from _problems_of(key, value, KEYS[change.entity[0][0]].get(key))


def _problems_of(key: str, value: float, limit: int | None) -> Iterator[str]:
    if limit is None:
        yield f"Invalid configuration key {key}"
    elif value <= 0:
        yield f"Quota {key} must be greater than 0"
    elif limit and value > limit:
        yield f"Proposed value for {key} is too large for {'a LONG' if limit == 2**63 else 'an INT'}."
    elif limit and abs(value % 1) > 1e-6:
        yield f"{key} cannot be a fractional value."
