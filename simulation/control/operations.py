"""The operations of the control API, derived from the classes that tests in Python use.

Each public method is an operation under its own name: `kafka.create_topic(...)` is `POST /create_topic`, and
`kafka.group("g").fence(...)` is `POST /groups/g/fence`. Properties, and methods that only read, are `GET`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, get_origin, get_type_hints

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.control.documents import arguments_of, result_type
from fencepost.simulation.embedded.controls import EmbeddedClock
from fencepost.simulation.embedded.fault_controls import Fault, FaultState
from fencepost.simulation.embedded.groups import AsyncGroup
from fencepost.simulation.embedded.kafka import AsyncEmbeddedKafka

READS: Final = frozenset(
    {
        "acls",
        "check",
        "events",
        "faults",
        "groups",
        "member_names",
        "members",
        "offsets",
        "quotas",
        "records",
        "timeline",
        "topics",
        "unmet",
        "users",
    }
)
"""Methods that change nothing."""
NOT_OFFERED: Final = {
    "awaited": "it is about Python",
    "close": "it is about Python",
    "end_of_test": "it is for the pytest plugin",
    "endpoint": "it is about Python",
    "fault": "its methods are at /faults/{fault}",
    "group": "its methods are at /groups/{group}",
    "is_running": "see /health",
    "met": "wait_met is the same",
    "scope": "see POST /scopes",
    "start": "it is about Python",
}
"""Public members that are no operation of their own, with the reason."""
NOT_SCOPED: Final = frozenset(
    {
        "add_broker",
        "add_user",
        "advance",
        "elect_leaders",
        "move_coordinator",
        "remove_broker",
        "remove_quota",
        "remove_user",
        "restart",
        "set_quota",
        "start_broker",
        "stop_broker",
    }
)
"""Operations that affect others, and that scopes refuse."""


MAX_DIGITS: Final = 18
"""The limit on digits of a number in a path or a header."""


class Place(NamedTuple):
    """A class whose members are operations, and the path of its objects."""

    made_of: type
    path: str
    key: str = ""
    """The variable in the path, if there are many objects."""
    of: Callable[[Any, str], Any] = lambda kafka, key: kafka
    """Return the object of a Kafka or scope, by the variable."""


@dataclasses.dataclass(frozen=True)
class Operation:
    """One member of a class as an operation. Its types are made when they are needed: that takes a while."""

    place: Place
    name: str
    verb: str
    description: str
    method: Callable[..., Any]

    @functools.cached_property
    def arguments(self) -> type[msgspec.Struct]:
        """The type of the document with the arguments."""
        title = "".join(word.title() for word in f"{self.place.key}_{self.name}".split("_"))
        return arguments_of(f"{title}Arguments", inspect.unwrap(self.method), without=("polling",))

    @functools.cached_property
    def result(self) -> Any:
        """The type of the result in JSON."""
        hint = get_type_hints(inspect.unwrap(self.method))["return"]
        return result_type(FaultState if hint is Fault else hint)

    @property
    def empty(self) -> Any:
        """The document of a result that is false: a list for an empty mapping that has no names as keys."""
        made = get_origin(self.result) or self.result
        return None if made is type(None) or made is Any else made()

    def of_document(self, found: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the method's arguments, by place and by name, from those of a document."""
        by_place: list[Any] = []
        by_name = dict(found)
        for parameter in inspect.signature(self.method).parameters.values():
            if parameter.name in by_name and parameter.kind is not parameter.KEYWORD_ONLY:
                value = by_name.pop(parameter.name)
                by_place += value if parameter.kind is parameter.VAR_POSITIONAL else [value]
        return by_place, by_name

    @property
    def path(self) -> str:
        """The path below the Kafka or a scope."""
        return f"{self.place.path}/{self.name}"


def _group(kafka: Any, group_id: str) -> AsyncGroup:
    return AsyncGroup(kafka, kafka._own("group", group_id, "a group id"))


def _fault(kafka: Any, number: str) -> Fault:
    if not number.isdecimal() or len(number) > MAX_DIGITS:
        raise FencepostError(f"fault {number[:MAX_DIGITS]!r}: expected its number, as add_fault returns it")
    return Fault(kafka, int(number))


PLACES: Final = (
    Place(AsyncEmbeddedKafka, ""),
    Place(EmbeddedClock, "/clock", of=lambda kafka, _: kafka.clock),
    Place(AsyncGroup, "/groups/{group}", "group", _group),
    Place(Fault, "/faults/{fault}", "fault", _fault),
)


def places_of(made_of: type) -> tuple[Place, ...]:
    """Return the places of another server with faults, which has this class."""
    return Place(made_of, ""), PLACES[-1]


def members_of(made_of: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties of a class, by name."""
    for name in sorted(dir(made_of)):
        member = inspect.getattr_static(made_of, name)
        if not name.startswith("_") and (callable(member) or isinstance(member, property)):
            yield name, member


def operations(places: Iterable[Place] = PLACES) -> Iterator[Operation]:
    """Yield all operations at these places."""
    for place in places:
        for name, member in members_of(place.made_of):
            if name not in NOT_OFFERED:
                yield _operation(place, name, member)


def _operation(place: Place, name: str, member: Any) -> Operation:
    is_read = isinstance(member, property) or name in READS
    method: Any = member.fget if isinstance(member, property) else member
    return Operation(place, name, "GET" if is_read else "POST", inspect.getdoc(member) or "", method)
