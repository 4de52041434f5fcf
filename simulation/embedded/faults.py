"""Faults between clients and brokers: responses that get lost, come late, or are errors instead.

A rule waits for the next request that it applies to. The brokers behind it do not notice it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Set
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.kinds import GroupMember
from fencepost.coordinator.protocol import logs
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import MemberId, TopicId, TopicPartition
from fencepost.coordinator.server.services import (
    NO_REPLY,
    Asked,
    Handler,
    OpenConnection,
    Services,
    Unanswered,
)
from fencepost.simulation.embedded.refusals import can_fail, refused

if TYPE_CHECKING:
    from fencepost.coordinator.server.connection import KafkaServerConnection


V = TypeVar("V")


class FaultRule(msgspec.Struct, kw_only=True):
    """A fault of responses of one API; with `times` None, of all of them."""

    api: ApiKey
    who: str | None = None
    """A member id, an instance id or a client id; None for all clients."""
    client_host: str | None = None
    """The host that the request comes from, such as `/127.0.0.1`; None for all hosts."""
    times: int | None = 1
    met: int = 0
    """Number of requests that the rule has met so far."""
    error: ErrorCode | None = None
    delay_s: float = 0.0
    lost: bool = False
    of_fence: bool = False
    """True if `fence` made the rule: the member may learn of its fencing by another request than the
    rule's."""
    name: str | None = None
    """The name that people use for the member; None if only `who` is known."""

    @property
    def method(self) -> str:
        """The name of the method by which a test made it."""
        if self.of_fence:
            return "fence"
        return "lose_next_response" if self.lost else "delay" if self.error is None else "fail_next"

    @property
    def arguments(self) -> str:
        """The arguments of that method."""
        arguments = [repr(self.api.name.title().replace("_", ""))]
        if self.error is not None:
            arguments.append(repr(self.error.name))
        elif self.delay_s:
            arguments.append(f"{self.delay_s:g}")
        if self.who is not None:
            arguments.append(repr(self.name or self.who))
        return ", ".join(arguments)

    def __str__(self) -> str:
        return f"{self.method}({self.arguments})"

    def is_about(self, request: Any, asked: Asked, names: Callable[[], Container[str | None]]) -> bool:
        """Return true if the rule applies to this request."""
        if self.error is not None and not can_fail(request, asked.context.api_version, self.error):
            return False
        if self.client_host not in (None, asked.context.client_host):
            return False
        return self.who is None or self.who in _names(request, asked) or self.who in names()


_FEW_CONNECTIONS = 64
"""Number of remembered connections from which on closed ones are removed."""


class _Handlers(NamedTuple):
    """The handlers of one broker."""

    used: dict[int, Handler]
    free: Mapping[int, Handler]
    """Handlers of requests without a rule."""
    ruled: Mapping[int, Handler]


class FaultInjector:
    """The rules of all brokers, and the members that use each connection."""

    def __init__(
        self,
        note: Callable[[ApiKey, Any, Asked, FaultRule], None],
        members: Callable[[], Iterable[GroupMember]],
        name_of: Callable[[TopicId], str | None],
    ) -> None:
        self._note = note
        self._all_members = members
        self._name_of = name_of
        self._fetched: dict[OpenConnection, set[TopicPartition]] = {}
        """The partitions that were named last on a connection that fetches."""
        self._readers: dict[OpenConnection, MemberId] = {}
        """The member whose client fetches on a connection."""
        self._rules: list[FaultRule] = []
        self._tables: list[_Handlers] = []
        self._members: dict[OpenConnection, dict[MemberId, None]] = {}
        self._many = _FEW_CONNECTIONS
        self._instance_ids: dict[MemberId, str] = {}
        """Instance ids of static members, which need not repeat them on their next connection."""

    def add(self, rule: FaultRule) -> None:
        """Add a rule after the existing ones."""
        self._rules.append(rule)
        self._arrange()

    def remove_delays(self, api: ApiKey, who: str | None, *, of_all: bool) -> list[FaultRule]:
        """End the delays of that API: those of `who`, or all of them.

        Return the delays that ended.
        """
        removed = [
            rule for rule in self._rules if rule.delay_s and rule.api is api and (of_all or rule.who == who)
        ]
        self._rules = [rule for rule in self._rules if rule not in removed]
        self._arrange()
        return removed

    def remove(self, rules: Iterable[FaultRule]) -> None:
        """Remove these rules."""
        ended = {id(rule) for rule in rules}
        self._rules = [rule for rule in self._rules if id(rule) not in ended]
        self._arrange()

    def clear(self) -> None:
        """Remove all rules."""
        self._rules.clear()
        self._arrange()

    @property
    def unmet(self) -> list[FaultRule]:
        """The test's own rules with a number of requests that still wait for some."""
        return [rule for rule in self._rules if rule.times is not None and not rule.of_fence]

    def around(self, table: Mapping[int, Handler]) -> Mapping[int, Handler]:
        """Return these handlers with the rules in front of them. The result changes with the rules."""
        free = {key: partial(self._pass_on, handler) for key, handler in table.items()}
        ruled = {key: partial(self._handle, ApiKey(key), handler) for key, handler in table.items()}
        handlers = _Handlers({}, free, ruled)
        self._tables.append(handlers)
        self._arrange()
        return handlers.used

    def _arrange(self) -> None:
        """Arrange the handlers by rules: a connection may respond without its handler unless a rule waits for
        the request."""
        about = {rule.api for rule in self._rules}
        for used, free, ruled in self._tables:
            used.update((key, ruled[key] if key in about else free[key]) for key in free)

    # -- connections ------------------------------------------------------------------------------------

    @property
    def connected(self) -> Set[MemberId]:
        """The members that have sent requests on an open connection."""
        return {
            member_id
            for connection, members in self._members.items()
            if not connection.is_closed
            for member_id in members
        }

    def disconnect(self, who: str, connections: Iterable[KafkaServerConnection]) -> list[str]:
        """Close the connections of members with that id, instance id or client id, and of clients with that
        id.

        Return the members' ids, or `who` for a client that is not a member.
        """
        found: dict[str, None] = {}
        others = False
        for connection in connections:
            if connection.is_closed:
                continue
            is_client = connection.client_id == who
            known = self._members.get(connection, {})
            members = [each for each in known if is_client or self._is_called(each, who)]
            if is_client or members:
                connection.close()
                found |= dict.fromkeys(members)
                others = others or not members
        return list(found) or [who] * others

    def _is_called(self, member_id: MemberId, who: str) -> bool:
        return who in (member_id, self._instance_ids.get(member_id))

    def forget(self, member_id: MemberId) -> None:
        """Forget a removed member."""
        self._instance_ids.pop(member_id, None)
        self._readers = {each: known for each, known in self._readers.items() if known != member_id}
        for members in self._members.values():
            members.pop(member_id, None)

    def _note_member(self, request: Any, reply: Any, connection: OpenConnection) -> None:
        """Note the member of a connection. A member that gets its id in the response has none in its request.
        Forget a member that left."""
        member_id = getattr(request, "member_id", None) or getattr(reply, "member_id", None)
        leaves = getattr(request, "member_epoch", 0) < 0
        unknown = getattr(reply, "error_code", None) is ErrorCode.UNKNOWN_MEMBER_ID
        if not member_id or leaves or unknown:
            return
        members = self._members.get(connection)
        if members is None:
            self._forget_closed()
            members = self._members[connection] = {}
        members[member_id] = None
        if instance_id := getattr(request, "instance_id", None):
            self._instance_ids[member_id] = instance_id

    def _forget_closed(self) -> None:
        """Forget closed connections, once many connections are known."""
        if max(len(self._members), len(self._fetched)) < self._many:
            return
        self._members = _of_open(self._members)
        self._fetched = _of_open(self._fetched)
        self._readers = _of_open(self._readers)
        self._many = max(_FEW_CONNECTIONS, 2 * len(self._members), 2 * len(self._fetched))

    # -- requests ---------------------------------------------------------------------------------------

    def _pass_on(self, handler: Handler, services: Services, request: Any, asked: Asked) -> Any:
        if isinstance(request, logs.FetchRequest):
            self._note_fetched(request, asked.connection)
        reply = handler(services, request, asked)
        self._note_member(request, reply, asked.connection)
        return reply

    def _handle(self, api: ApiKey, handler: Handler, services: Services, request: Any, asked: Asked) -> Any:
        if api is ApiKey.FETCH:
            self._note_fetched(request, asked.connection)
        rules = self._about(api, request, asked)
        if not rules:
            return self._pass_on(handler, services, request, asked)
        for rule in rules:
            self._note(api, request, asked, rule)
            rule.met += 1
            if rule.met == rule.times:
                self._rules.remove(rule)
                self._arrange()
        error = next((rule.error for rule in rules if rule.error is not None), None)
        if error is None:
            reply = self._pass_on(handler, services, request, asked)
        else:
            reply = refused(handler, services, request, asked, error)
        lost = reply is None or any(rule.lost for rule in rules)
        delay_s = sum(rule.delay_s for rule in rules)
        if reply is NO_REPLY or (delay_s == 0 and not isinstance(reply, asyncio.Future)):
            return self._answer(api, reply, lost)
        return services.loop.create_task(self._later(api, reply, lost, delay_s))

    def _names_on(self, asked: Asked) -> set[str | None]:
        """Return the ids of the members that use a connection.

        Heartbeats and commits name their member. Clients fetch on other connections. Such a connection
        belongs to the only member with its client id and host that has one of the fetched partitions
        assigned.
        """
        connection = asked.connection
        ids = dict.fromkeys(self._members.get(connection, ()))
        if not ids and (fetched := self._fetched.get(connection)):
            context = asked.context
            found = [
                member
                for member in self._all_members()
                if (member.client_id, member.client_host) == (context.client_id, context.client_host)
                and not fetched.isdisjoint(member.assignment)
            ]
            if len(found) == 1:
                self._readers[connection] = found[0].member_id
        if not ids and connection in self._readers:
            ids[self._readers[connection]] = None
        return {*ids, *(self._instance_ids.get(each) for each in ids)} - {None}

    def _topic_name(self, topic: logs.OfTopic[Any]) -> str | None:
        if topic.name is not None or topic.topic_id is None:
            return topic.name
        return self._name_of(topic.topic_id)

    def _note_fetched(self, request: logs.FetchRequest, connection: OpenConnection) -> None:
        """Remember the partitions that a fetch names; a fetch that continues a session may name none."""
        if not request.topics:
            return
        self._forget_closed()
        self._fetched[connection] = {
            TopicPartition(name, one.partition)
            for topic in request.topics
            if (name := self._topic_name(topic)) is not None
            for one in topic.partitions
        }

    def _about(self, api: ApiKey, request: Any, asked: Asked) -> list[FaultRule]:
        """Return the rules for a request. It fails at most once and is lost at most once: further such rules
        wait."""
        rules: list[FaultRule] = []
        names = partial(self._names_on, asked)
        fails = is_lost = False
        for rule in self._rules:
            if rule.api is not api or not rule.is_about(request, asked, names):
                continue
            if (rule.error is not None and fails) or (rule.lost and is_lost):
                continue
            fails, is_lost = fails or rule.error is not None, is_lost or rule.lost
            rules.append(rule)
        return rules

    @staticmethod
    def _answer(api: ApiKey, reply: Any, lost: bool) -> Any:
        if lost:
            raise Unanswered(f"the response to {api.name} was lost on purpose")
        return reply

    async def _later(self, api: ApiKey, reply: Any, lost: bool, delay_s: float) -> Any:
        if isinstance(reply, asyncio.Future):
            reply = await reply
        await asyncio.sleep(delay_s)
        return self._answer(api, reply, lost)


def _of_open(known: Mapping[OpenConnection, V]) -> dict[OpenConnection, V]:
    return {each: value for each, value in known.items() if not each.is_closed}


def _names(request: Any, asked: Asked) -> Iterator[str | None]:
    """Yield all names of the client that sent the request."""
    for each in (request, *getattr(request, "groups", ()), *getattr(request, "members", ())):
        yield getattr(each, "member_id", None)
        yield getattr(each, "instance_id", None)
    yield asked.context.client_id
