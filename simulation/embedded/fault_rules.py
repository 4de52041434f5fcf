"""Rules about requests and responses: which requests they apply to, how often, and what they do to them."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Collection, Container, Iterator
from typing import Any, Final

import msgspec

from fencepost.coordinator.codec.registry import api_name
from fencepost.coordinator.protocol.cluster import FindCoordinatorRequest
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.server.refused import can_fail
from fencepost.coordinator.server.services import Asked


class FaultAction(enum.StrEnum):
    """The effect of a fault on a request or on its response."""

    ERROR = "error"
    """The broker does not carry out the request, and responds with an error."""
    LOSE_RESPONSE = "lose_response"
    """The broker carries it out, and closes the connection instead of responding."""
    LOSE_REQUEST = "lose_request"
    """The broker closes the connection, and does not carry it out."""
    DISCONNECT = "disconnect"
    """The broker closes all connections of the client, and does not carry it out."""
    SILENT = "silent"
    """The broker neither carries it out nor responds, and the connection stays open."""
    DELAY = "delay"
    """The broker carries it out at once, and delays the response."""
    THROTTLE = "throttle"
    """The response says that the client is throttled, and the broker reads no more from it for that time
    (KIP-219)."""
    CORRUPT = "corrupt"
    """The records in the response are damaged: their checksums do not match. Only for Fetch. Responses
    without records do not count."""


NOT_CARRIED_OUT: Final = frozenset(
    {FaultAction.ERROR, FaultAction.LOSE_REQUEST, FaultAction.DISCONNECT, FaultAction.SILENT}
)
"""A request meets at most one rule with such an action."""
_METHODS: Final = {FaultAction.LOSE_RESPONSE: "lose_next_response", FaultAction.DELAY: "delay"}
ADDED_UP: Final = frozenset({FaultAction.DELAY, FaultAction.THROTTLE})
"""Actions of several rules that apply to one request together."""


class FaultRule(msgspec.Struct, kw_only=True):
    """A fault of some requests. A selector of None matches every request."""

    action: FaultAction = FaultAction.ERROR
    error: ErrorCode | None = None
    at_top: bool | None = None
    """True if the error belongs to the whole response, where it has a place for one; false if it belongs to
    each part. None leaves it where a broker puts it."""
    seconds: float = 0.0

    api: int | None = None
    who: str | None = None
    """A member id, an instance id or a client id."""
    client_id: str | None = None
    client_host: str | None = None
    """The host that the request comes from, such as `/127.0.0.1`."""
    group: str | None = None
    topic: str | None = None
    partition: int | None = None
    broker: int | None = None
    version: int | None = None
    prefix: str = ""
    """The beginning of a name in the request; empty if the rule is not of a scope."""

    times: int | None = 1
    """The number of requests that it meets before it ends; None if it does not end."""
    every: int = 1
    probability: float = 1.0
    seed: int = 0
    rng: random.Random | None = None

    number: int = 0
    matched: int = 0
    """Number of requests that its selectors have matched."""
    met: int = 0
    """Number of requests that it has acted on."""
    made_by: str = ""
    """The method by which a test made it, if that does not follow from the action."""
    rows: set[int] | None = None
    """The numbers of the rows about it, if it is of a scope."""
    name: str | None = None
    """The name that people use for the member; None if only `who` is known."""

    @property
    def method(self) -> str:
        """The name of the method by which a test made it."""
        return self.made_by or _METHODS.get(self.action, "fail_next")

    @property
    def of_fence(self) -> bool:
        """True if `fence` made the rule: the member may learn of its fencing by another request than the
        rule's."""
        return self.made_by == "fence"

    @property
    def arguments(self) -> str:
        """The arguments of that method."""
        is_general = self.made_by == "add_fault"
        arguments = [repr(self.action.value)] * is_general
        if self.api is not None:
            arguments.append(repr(api_name(self.api)))
        if self.error is not None:
            arguments.append(repr(self.error.name))
        elif self.seconds:
            arguments.append(f"seconds={self.seconds:g}" if is_general else f"{self.seconds:g}")
        if self.who is not None:
            arguments.append(repr(self.name or self.who))
        for selector in ("client_id", "group", "topic", "partition", "broker", "version"):
            if (value := getattr(self, selector)) is not None:
                arguments.append(f"{selector}={value!r}")
        if self.at_top is not None:
            arguments.append(f"at_top={self.at_top}")
        if is_general and self.times != 1:
            arguments.append(f"times={self.times}")
        if self.every != 1:
            arguments.append(f"every={self.every}")
        if self.probability != 1:
            arguments.append(f"probability={self.probability:g}")
            if self.seed:
                arguments.append(f"seed={self.seed}")
        return ", ".join(arguments)

    def __str__(self) -> str:
        return f"{self.method}({self.arguments})"

    def is_about(
        self,
        request: Any,
        asked: Asked,
        broker: int,
        names: Callable[[], Container[str | None]],
        partitions: Callable[[], Collection[tuple[str | None, int | None]]],
    ) -> bool:
        """Return true if the selectors match this request.

        `names` returns the names of the members on its connection, `partitions` the partitions that it is
        about.
        """
        context = asked.context
        if (
            self.client_host not in (None, context.client_host)
            or self.client_id not in (None, context.client_id)
            or self.version not in (None, context.api_version)
            or self.broker not in (None, broker)
            or (self.group is not None and self.group not in set(groups_of(request)))
        ):
            return False
        if self.error is not None and not can_fail(request, context.api_version, self.error):
            return False
        if self.topic is not None and not any(
            topic == self.topic and (self.partition is None or number in (None, self.partition))
            for topic, number in partitions()
        ):
            return False
        if self.prefix and not any(
            name is not None and name.startswith(self.prefix)
            for name in (
                context.client_id,
                *groups_of(request),
                getattr(request, "transactional_id", None),
                *(topic for topic, _ in partitions()),
            )
        ):
            return False
        return self.who is None or self.who in set(_names(request, asked)) or self.who in names()

    def counts(self) -> bool:
        """Count a request that the selectors match. Return true if the rule acts on it."""
        self.matched += 1
        if self.matched % self.every:
            return False
        return self.rng is None or self.rng.random() < self.probability


GROUP_FIELDS: Final = frozenset({"group_id", "group_ids", "groups", "keys"})
TOPIC_FIELDS: Final = frozenset({"topics", "subscribed_topic_names", "transactions", "resources", "groups"})
"""Fields of requests that name groups, and those that may name topics."""


def groups_of(request: Any) -> Iterator[str]:
    """Yield the ids of the groups that a request is about."""
    if (group_id := getattr(request, "group_id", None)) is not None:
        yield group_id
    yield from getattr(request, "group_ids", ())
    yield from (each.group_id for each in getattr(request, "groups", ()) if hasattr(each, "group_id"))
    if isinstance(request, FindCoordinatorRequest):
        yield from request.keys


def partitions_of(
    request: Any, name_of: Callable[[Any], str | None]
) -> Iterator[tuple[str | None, int | None]]:
    """Yield the topics that a request names, with each of their partitions that it names, or None.

    `name_of` returns the name of a topic with a name or an id.
    """
    groups = getattr(request, "groups", ())
    of_groups = (topic for each in groups for topic in getattr(each, "topics", None) or ())
    for topic in (*(getattr(request, "topics", None) or ()), *of_groups):
        if isinstance(topic, str):
            yield topic, None
        elif hasattr(topic, "name"):
            numbers = getattr(topic, "partitions", None)
            for one in numbers if isinstance(numbers, tuple) and numbers else (None,):
                yield name_of(topic), one if one is None or isinstance(one, int) else one.partition
    for name in getattr(request, "subscribed_topic_names", None) or ():
        yield name, None
    for each in getattr(request, "transactions", ()):
        yield from getattr(each, "partitions", ())
    for resource in getattr(request, "resources", ()):
        yield resource.name, None


def _names(request: Any, asked: Asked) -> Iterator[str | None]:
    """Yield all names of the client that sent the request."""
    for each in (request, *getattr(request, "groups", ()), *getattr(request, "members", ())):
        yield getattr(each, "member_id", None)
        yield getattr(each, "instance_id", None)
    yield asked.context.client_id
