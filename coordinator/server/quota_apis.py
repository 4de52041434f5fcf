"""Quotas of clients: the handlers of their requests, the use of quotas by each request, and the throttling of
clients above them (KIP-13, KIP-124, KIP-219)."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from fencepost.coordinator.protocol import logs, quotas
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.quotas import (
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    WINDOW_MS,
    ClientQuotas,
)
from fencepost.coordinator.server.services import NO_REPLY, Asked, Services, ThrottledReply

_LONGEST_MS: Final = 2**31 - 1


def describe_quotas(
    services: Services, request: quotas.DescribeClientQuotasRequest, asked: Asked
) -> quotas.DescribeClientQuotasResponse:
    """Return the quotas whose entities meet the conditions."""
    try:
        found = services.rights.quotas.find(request.components, strict=request.strict)
    except ProtocolError as error:
        return quotas.DescribeClientQuotasResponse(error_code=error.code, error_message=error.message)
    return quotas.DescribeClientQuotasResponse(error_message="", entries=tuple(found))


def alter_quotas(
    services: Services, request: quotas.AlterClientQuotasRequest, asked: Asked
) -> quotas.AlterClientQuotasResponse:
    """Change the quotas of each entity by itself."""
    results = []
    for change in request.entries:
        code, message = ErrorCode.NONE, None
        try:
            services.rights.quotas.alter(change, validate_only=request.validate_only)
        except ProtocolError as error:
            code, message = error.code, error.message
        entity = tuple(dict(change.entity).items())
        results.append(quotas.AlteredQuota(entity=entity, error_code=code, error_message=message))
    services.rights.changed()
    return quotas.AlterClientQuotasResponse(entries=tuple(results))


class QuotaAccount:
    """The use of quotas by one request."""

    def __init__(self, quotas: ClientQuotas, services: Services, asked: Asked) -> None:
        self._quotas = quotas
        self._clock = services.transactions
        self._who = asked.connection.principal.removeprefix("User:"), asked.context.client_id
        self._began_s = time.perf_counter()
        self._seconds: float | None = None
        self._fetch_throttle_ms: int | None = None

    def limited(self, request: logs.FetchRequest) -> logs.FetchRequest:
        """Return a fetch of no more bytes than the client can have without being throttled."""
        quota_bytes = self._quotas.most_in_windows(CONSUMER_BYTE_RATE, *self._who)
        # Of a quota that is NaN, Java's cast makes 0: one batch at a time.
        most = 0 if math.isnan(quota_bytes) else int(min(quota_bytes, request.max_bytes))
        return msgspec.structs.replace(request, max_bytes=most, min_bytes=min(request.min_bytes, most))

    def stop(self) -> None:
        """Take the time until now for that of the request: what follows is a wait."""
        self._seconds = time.perf_counter() - self._began_s

    def exceeds(self, fetched_bytes: int) -> bool:
        """Return true if a client may not have these bytes yet, since it is above a quota."""
        self._fetch_throttle_ms = self._count(CONSUMER_BYTE_RATE, fetched_bytes)
        if self._fetch_throttle_ms:
            now_ms = self._clock.now_ms()
            self._quotas.give_back(CONSUMER_BYTE_RATE, *self._who, fetched_bytes, now_ms)
        return self._fetch_throttle_ms > 0

    def throttle_ms(self, request: Any) -> int:
        """Return for how long the client is throttled after the request, in ms."""
        if self._fetch_throttle_ms is not None:
            return self._fetch_throttle_ms
        if not isinstance(request, logs.ProduceRequest):
            return self._count("", 0)
        data = (one.records for topic in request.topics for one in topic.partitions)
        return self._count(PRODUCER_BYTE_RATE, sum(len(each or b"") for each in data))

    def _count(self, key: str, amount: int) -> int:
        now_ms, quotas = self._clock.now_ms(), self._quotas
        seconds = time.perf_counter() - self._began_s if self._seconds is None else self._seconds
        of_time_ms = quotas.throttle_ms(REQUEST_PERCENTAGE, *self._who, seconds * 100, now_ms)
        of_bytes_ms = quotas.throttle_ms(key, *self._who, amount, now_ms) if key else 0
        return max(min(of_time_ms, WINDOW_MS), min(of_bytes_ms, _LONGEST_MS))


def throttled(services: Services, reply: Any, throttle_ms: Callable[[Any], int]) -> Any:
    """Return the response, or a future of it if its client is throttled."""

    async def slowed(told: Any, ms: int) -> Any:
        if told is NO_REPLY:
            await asyncio.sleep(ms / 1_000)
            return told
        return ThrottledReply(told, ms)

    def slow(told: Any) -> Any:
        ms = throttle_ms(told)
        return services.loop.create_task(slowed(told, ms)) if ms else told

    return services.then(reply, slow)
