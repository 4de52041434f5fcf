"""Faults between clients and brokers: responses that get lost, come late, or are errors instead.

A rule waits for the next request that it applies to. The brokers behind it do not notice it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from fencepost.coordinator.codec.registry import ApiKey, api_name
from fencepost.coordinator.kinds import GroupMember
from fencepost.coordinator.protocol import logs
from fencepost.coordinator.protocol.errors import ErrorCode, FencepostError
from fencepost.coordinator.protocol.ids import MemberId, TopicId, TopicPartition
from fencepost.coordinator.server.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    FetchSession,
    Wanted,
    wanted_by,
)
from fencepost.coordinator.server.refused import refused
from fencepost.coordinator.server.repeated import RepeatingHandlers
from fencepost.coordinator.server.services import (
    NO_REPLY,
    Asked,
    Handler,
    OpenConnection,
    Services,
    ThrottledReply,
    Unanswered,
)
from fencepost.simulation.embedded.fault_rules import (
    ADDED_UP,
    NOT_CARRIED_OUT,
    FaultAction,
    FaultRule,
    partitions_of,
)

V = TypeVar("V")


_MOST_ENDED = 1_000
"""Number of rules that have ended and can still be asked for."""
MOST_MEMBERS = 1_000
"""Number of members that are remembered for one connection; by the clients' rules it has one."""
_NO_MEMBER = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND})
_FEW_CONNECTIONS = 64
"""Number of remembered connections from which on closed ones are removed."""


class NamedConnection(OpenConnection, Protocol):
    """A client's connection with its client id."""

    @property
    def client_id(self) -> str:
        """The client id; empty until the client has sent it."""


class _Handlers(NamedTuple):
    """The handlers of one broker."""

    used: RepeatingHandlers
    free: Mapping[int, Handler]
    """Handlers of requests without a rule."""
    ruled: Mapping[int, Handler]


class FaultInjector:
    """The rules of all brokers, and the members that use each connection."""

    def __init__(
        self,
        note: Callable[[int, Any, Asked, FaultRule], None],
        members: Callable[[], Iterable[GroupMember]],
        name_of: Callable[[TopicId], str | None],
        connections: Callable[[], Iterable[NamedConnection]],
        damaged: Callable[[Any, int], Any] = lambda reply, version: _damaged(reply),
        *,
        read: Callable[[int, int, Any], Any] = lambda api, version, reply: reply,
    ) -> None:
        """`damaged` returns a response of that version with damaged records; None if it has no records.
        `read` returns the message of a response to that API and version that came later."""
        self._note = note
        self._all_members = members
        self._name_of = name_of
        self._connections = connections
        self._damaged = damaged
        self._read = read
        self._fetched: dict[OpenConnection, logs.FetchRequest | FetchSession] = {}
        """The last full request on a connection that fetches, or the partitions of its session."""
        self._readers: dict[OpenConnection, MemberId] = {}
        """The member whose client fetches on a connection."""
        self._rules: list[FaultRule] = []
        self._ended: dict[int, FaultRule] = {}
        """The newest rules that have ended, by their numbers."""
        self._count = 0
        self.requests: Counter[int] = Counter()
        """The number of requests that came to a handler, by API."""
        self._tables: dict[int, _Handlers] = {}
        """The handlers of each broker, by its id."""
        self._members: dict[OpenConnection, dict[MemberId, str]] = {}
        """The members that use each connection, with their groups."""
        self._many = _FEW_CONNECTIONS
        self._instance_ids: dict[MemberId, str] = {}
        """Instance ids of static members, which need not repeat them on their next connection."""

    def add(self, rule: FaultRule) -> None:
        """Add a rule after the existing ones, and number it."""
        self._count += 1
        rule.number = self._count
        self._rules.append(rule)
        self._arrange()

    def remove_delays(self, api: int, who: str | None, prefix: str, *, of_all: bool) -> list[FaultRule]:
        """End the delays of that API that `delay` made: those of `who`, or all of them in the scope.

        Return the delays that ended.
        """
        removed = [
            rule
            for rule in self.of_scope(prefix)
            if rule.method == "delay" and rule.api == api and (of_all or rule.who == who)
        ]
        self.remove(removed)
        return removed

    def remove(self, rules: Iterable[FaultRule]) -> None:
        """Remove these rules."""
        ended = {id(rule): rule for rule in rules}
        self._rules = [rule for rule in self._rules if id(rule) not in ended]
        for rule in ended.values():
            self._ended[rule.number] = rule
            if len(self._ended) > _MOST_ENDED:
                del self._ended[next(iter(self._ended))]
        self._arrange()

    def of_scope(self, prefix: str) -> list[FaultRule]:
        """Return the rules that have not ended: those of a scope, or all of them."""
        return [rule for rule in self._rules if not prefix or rule.prefix == prefix]

    def known(self, prefix: str) -> dict[int, FaultRule]:
        """Return the rules of a scope, or all of them, by their numbers; those that have ended, too."""
        rules = self._ended | {rule.number: rule for rule in self._rules}
        return {number: rule for number, rule in sorted(rules.items()) if not prefix or rule.prefix == prefix}

    def is_over(self, rule: FaultRule) -> bool:
        """Return true if a rule has ended."""
        return rule.number in self._ended

    def find(self, number: int, prefix: str) -> FaultRule:
        """Return a rule by its number.

        :raises FencepostError: if the scope has none with it.
        """
        known = self.known(prefix)
        if number not in known:
            raise FencepostError(
                f"there is no fault {number!r}; there are {', '.join(map(str, known)) or 'none'}"
            )
        return known[number]

    def clear(self) -> None:
        """Remove all rules."""
        self._rules.clear()
        self._arrange()

    def unmet(self, prefix: str = "") -> list[FaultRule]:
        """Return the test's own rules with a number of requests that still wait for some."""
        return [rule for rule in self.of_scope(prefix) if rule.times is not None and not rule.of_fence]

    def has_rules_about(self, api: int) -> bool:
        """Return true if a rule may act on requests of that API."""
        return any(rule.api in (None, api) for rule in self._rules)

    def around(self, node_id: int, table: Mapping[int, Handler]) -> Mapping[int, Handler]:
        """Return the handlers of a broker with the rules in front of them. The result changes with the rules,
        until the broker starts again."""
        free = {key: partial(self._pass_on, key, handler) for key, handler in table.items()}
        ruled = {key: partial(self._handle, ApiKey(key), handler) for key, handler in table.items()}
        handlers = _Handlers(RepeatingHandlers(), free, ruled)
        self._tables[node_id] = handlers
        self._arrange()
        return handlers.used

    def _arrange(self) -> None:
        """Arrange the handlers by rules: a connection may respond without its handler unless a rule waits for
        the request."""
        about = {rule.api for rule in self._rules}
        of_all = None in about
        for used, free, ruled in self._tables.values():
            used.update((key, ruled[key] if of_all or key in about else free[key]) for key in free)
            is_ruled = of_all or ApiKey.CONSUMER_GROUP_HEARTBEAT in about
            used.again = None if is_ruled else self._again

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

    def disconnect(self, who: str, prefix: str = "") -> list[str]:
        """Close the connections of members with that id, instance id or client id, and of clients with that
        id; with the prefix of a scope, only those of the scope.

        Return the members' ids, or `who` for a client that is not a member.
        """
        found: dict[str, None] = {}
        others = False
        for connection in self._connections():
            if connection.is_closed or not self._is_of_scope(connection, prefix):
                continue
            is_client = connection.client_id == who
            known = self._members.get(connection, {})
            members = [each for each in known if is_client or self._is_called(each, who)]
            if is_client or members:
                connection.close()
                found |= dict.fromkeys(members)
                others = others or not members
        return list(found) or [who] * others

    def _is_of_scope(self, connection: NamedConnection, prefix: str) -> bool:
        """Return true if the client's id, a group of its members, or a topic that it fetches has the
        prefix."""
        if (connection.client_id or "").startswith(prefix):
            return True
        groups = self._members.get(connection, {}).values()
        topics = (each.name or "" for each in self.fetched_on(connection))
        return any(name.startswith(prefix) for name in (*groups, *topics))

    def is_member(self, who: str) -> bool:
        """Return true if a known member has that id or instance id, and no client on a connection has it."""
        return any(
            self._is_called(each, who) for members in self._members.values() for each in members
        ) and all(each.client_id != who for each in self._connections())

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
        if not member_id or leaves or getattr(reply, "error_code", None) in _NO_MEMBER:
            return
        members = self._members.get(connection)
        if members is None:
            self._forget_closed()
            members = self._members[connection] = {}
        remember(members, member_id, getattr(request, "group_id", ""))
        if instance_id := getattr(request, "instance_id", None):
            remember(self._instance_ids, member_id, instance_id, 10 * MOST_MEMBERS)

    def _note_later(self, api: int, request: Any, asked: Asked, coming: asyncio.Future[Any]) -> None:
        """Note the member of a connection once a response has come."""
        if not coming.cancelled() and coming.exception() is None and not asked.connection.is_closed:
            reply = self._read(api, asked.context.api_version, coming.result())
            self._note_member(request, reply, asked.connection)

    def forget_connection(self, connection: NamedConnection) -> None:
        """Forget a connection that has ended."""
        for known in (self._members, self._fetched, self._readers):
            known.pop(connection, None)

    def _forget_closed(self) -> None:
        """Forget closed connections, once many connections are known."""
        if max(len(self._members), len(self._fetched)) < self._many:
            return
        self._members = _of_open(self._members)
        self._fetched = _of_open(self._fetched)
        self._readers = _of_open(self._readers)
        self._many = max(_FEW_CONNECTIONS, 2 * len(self._members), 2 * len(self._fetched))

    # -- requests ---------------------------------------------------------------------------------------

    def _pass_on(self, key: int, handler: Handler, services: Services, request: Any, asked: Asked) -> Any:
        if isinstance(request, logs.FetchRequest):
            self._note_fetched(request, asked)
        return self._carry_out(key, request, asked, partial(handler, services, request, asked))

    def _carry_out(self, key: int, request: Any, asked: Asked, carry_out: Callable[[], Any]) -> Any:
        self.requests[key] += 1
        reply = carry_out()
        if not isinstance(reply, asyncio.Future):
            self._note_member(request, reply, asked.connection)
        elif (member_id := getattr(request, "member_id", None)) is not None and (
            member_id not in self._members.get(asked.connection, ())
        ):
            reply.add_done_callback(partial(self._note_later, key, request, asked))
        return reply

    def _again(self, services: Services, request: Any, connection: OpenConnection) -> Any:
        """Pass a repeated heartbeat on."""
        self.requests[ApiKey.CONSUMER_GROUP_HEARTBEAT] += 1
        reply = services.ask(request)
        self._note_member(request, reply, connection)
        return reply

    def _handle(self, api: ApiKey, handler: Handler, services: Services, request: Any, asked: Asked) -> Any:
        return self.handle(
            api,
            request,
            asked,
            partial(handler, services, request, asked),
            lambda error, at_top: refused(handler, services, request, asked, error, at_top=at_top),
            broker=services.node_id,
        )

    def handle(
        self,
        api: int,
        request: Any,
        asked: Asked,
        carry_out: Callable[[], Any],
        refuse: Callable[[ErrorCode, bool | None], Any],
        *,
        broker: int,
    ) -> Any:
        """Return the response to a request, or a future of it, after the rules.

        `carry_out` returns that of the broker, `refuse` one with an error at the top or in each part, or None
        if no response can have it.

        :raises Unanswered: if the connection is to be closed instead; the future, too.
        """
        if isinstance(request, logs.FetchRequest):
            self._note_fetched(request, asked)
        rules = self._about(api, request, asked, broker)
        if not rules:
            return self._carry_out(api, request, asked, carry_out)
        note = partial(self._note, api, request, asked)
        corrupting = [rule for rule in rules if rule.action is FaultAction.CORRUPT]
        for rule in rules:
            if rule.action is not FaultAction.CORRUPT:
                self._meet(rule, note)
        by_action = {rule.action: rule for rule in rules}
        if not NOT_CARRIED_OUT.isdisjoint(by_action):
            self.requests[api] += 1
        loop = asyncio.get_running_loop()
        if FaultAction.SILENT in by_action:
            return loop.create_future()  # until its client gives up
        self._lose_request(api, by_action, asked)
        failing = by_action.get(FaultAction.ERROR)
        if failing is None or failing.error is None:
            reply = self._carry_out(api, request, asked, carry_out)
        else:
            reply = refuse(failing.error, failing.at_top)
        lost = reply is None or FaultAction.LOSE_RESPONSE in by_action
        changed = _Changed(
            lost=lost,
            corrupt=partial(self._corrupt, corrupting, note, asked.context.api_version),
            delay_s=sum(rule.seconds for rule in rules if rule.action is FaultAction.DELAY),
            throttle_s=sum(rule.seconds for rule in rules if rule.action is FaultAction.THROTTLE),
        )
        is_late = changed.delay_s or changed.throttle_s or isinstance(reply, asyncio.Future)
        if not is_late or (reply is NO_REPLY and not changed.throttle_s):
            return self._answer(api, reply, changed)
        return loop.create_task(self._later(api, reply, changed))

    def _meet(self, rule: FaultRule, note: Callable[[FaultRule], None]) -> None:
        rule.met += 1
        if rule.met == rule.times:
            self.remove((rule,))
        note(rule)

    def _corrupt(
        self,
        rules: Iterable[FaultRule],
        note: Callable[[FaultRule], None],
        version: int,
        reply: Any,
    ) -> Any:
        """Return the response with damaged records, if it has records and one of the rules acts on it."""
        if rules and (damaged := self._damaged(reply, version)) is not None:
            for rule in rules:
                if not self.is_over(rule) and rule.counts():
                    self._meet(rule, note)
                    return damaged
        return reply

    def _lose_request(self, api: int, by_action: Mapping[FaultAction, FaultRule], asked: Asked) -> None:
        """Close connections, if a rule is about that.

        :raises Unanswered: then.
        """
        if (rule := by_action.get(FaultAction.DISCONNECT)) is not None:
            for each in self._connections():
                if each.client_id == asked.context.client_id and self._is_of_scope(each, rule.prefix):
                    each.close()
        if FaultAction.DISCONNECT in by_action or FaultAction.LOSE_REQUEST in by_action:
            raise Unanswered(f"a request of {api_name(api)} was lost on purpose")

    def _names_on(self, asked: Asked) -> set[str | None]:
        """Return the ids of the members that use a connection.

        Heartbeats and commits name their member. Clients fetch on other connections.
        """
        ids = dict.fromkeys(self._members.get(asked.connection, ()))
        if not ids and (reader := self._reader_on(asked)) is not None:
            ids[reader] = None
        return {*ids, *(self._instance_ids.get(each) for each in ids)} - {None}

    def _reader_on(self, asked: Asked) -> MemberId | None:
        """Return the member that fetches on a connection, if any.

        It is the only one with the same client id and host that has one of the fetched partitions assigned.
        While there are several, it stays the one that was found last: librdkafka may go on to fetch a
        partition that it no longer owns. But it is none that fetches these on another connection.
        """
        context, connection = asked.context, asked.connection
        fetched = self._names_fetched_on(connection)
        found = {
            member.member_id: fetched.intersection(member.assignment)
            for member in (self._all_members() if fetched else ())
            if (member.client_id, member.client_host) == (context.client_id, context.client_host)
            and not fetched.isdisjoint(member.assignment)
        }
        if len(found) > 1:
            for other, reader in self._readers.items():
                if other is not connection and found.get(reader, set()) & self._names_fetched_on(other):
                    del found[reader]
        if len(found) == 1:
            (self._readers[connection],) = found
        return self._readers.get(connection)

    def _names_fetched_on(self, connection: OpenConnection) -> set[TopicPartition]:
        return {
            TopicPartition(each.name, each.partition.partition)
            for each in self.fetched_on(connection)
            if each.name
        }

    def _topic_name(self, topic: Any) -> str | None:
        topic_id: TopicId | None = getattr(topic, "topic_id", None)
        name: str | None = topic.name
        return name if name is not None or topic_id is None else self._name_of(topic_id)

    def _note_fetched(self, request: logs.FetchRequest, asked: Asked) -> None:
        """Remember the partitions of a full fetch, or change those of its session (KIP-227). Of the first
        fetch on a connection, also remember the member."""
        connection = asked.connection
        is_new = connection not in self._fetched
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._forget_closed()
            self._fetched[connection] = request
        elif request.topics or request.forgotten:
            self._session_on(connection, by_id=request.by_id).update(
                wanted_by(request, self._name_of), request.forgotten
            )
        if is_new:
            self._reader_on(asked)

    def _session_on(self, connection: OpenConnection, *, by_id: bool) -> FetchSession:
        """Return the session of a connection, made from its last full request if needed."""
        found = self._fetched.get(connection)
        if isinstance(found, FetchSession):
            return found
        session = self._fetched[connection] = FetchSession(
            NO_SESSION, by_id=by_id if found is None else found.by_id
        )
        if found is not None:
            session.update(wanted_by(found, self._name_of), ())
        return session

    def fetched_on(self, connection: OpenConnection) -> list[Wanted]:
        """Return the partitions that a connection fetches: those of its session, or of its last request."""
        if connection not in self._fetched:
            return []
        session = self._session_on(connection, by_id=False)
        session.find_names(self._name_of)
        return session.wanted

    def _about(self, api: int, request: Any, asked: Asked, broker: int) -> list[FaultRule]:
        """Return the rules that act on a request. It fails at most once and is lost at most once: further
        such rules wait."""
        rules: list[FaultRule] = []
        names = partial(self._names_on, asked)
        partitions = partial(self._partitions_of, request, asked.connection)
        taken: set[object] = set()
        for rule in self._rules:
            if rule.api not in (None, api) or not rule.is_about(request, asked, broker, names, partitions):
                continue
            if rule.action is FaultAction.CORRUPT:
                rules.append(rule)  # it counts responses with records
                continue
            kind = NOT_CARRIED_OUT if rule.action in NOT_CARRIED_OUT else rule.action
            if (kind in taken and kind not in ADDED_UP) or not rule.counts():
                continue
            taken.add(kind)
            rules.append(rule)
        return rules

    def _partitions_of(
        self, request: Any, connection: OpenConnection
    ) -> Collection[tuple[str | None, int | None]]:
        if isinstance(request, logs.FetchRequest):
            return [(each.name, each.partition.partition) for each in self.fetched_on(connection)]
        return list(partitions_of(request, self._topic_name))

    @staticmethod
    def _answer(api: int, reply: Any, changed: _Changed) -> Any:
        throttle_ms = round(changed.throttle_s * 1_000)
        if isinstance(reply, ThrottledReply):  # by a quota
            reply, throttle_ms = reply.reply, max(throttle_ms, reply.throttle_time_ms)
        if changed.lost:
            raise Unanswered(f"the response to {api_name(api)} was lost on purpose")
        reply = changed.corrupt(reply)
        if reply is NO_REPLY:
            return reply
        return ThrottledReply(reply, throttle_ms) if throttle_ms else reply

    async def _later(self, api: int, reply: Any, changed: _Changed) -> Any:
        if isinstance(reply, asyncio.Future):
            reply = await reply
        # Without a response, the broker reads no further request of the client for the time.
        await asyncio.sleep(changed.throttle_s if reply is NO_REPLY else changed.delay_s)
        return self._answer(api, reply, changed)


class _Changed(NamedTuple):
    """The changes that rules make to a response."""

    lost: bool
    corrupt: Callable[[Any], Any]
    delay_s: float
    throttle_s: float


def _damaged(reply: Any) -> Any:
    """Return a response whose batches end with another byte: their checksums do not match."""
    if not isinstance(reply, logs.FetchResponse):
        return None
    if not any(one.batches for topic in reply.topics for one in topic.partitions):
        return None
    replace = msgspec.structs.replace
    topics = (
        replace(
            topic,
            partitions=tuple(
                replace(one, batches=tuple(map(with_wrong_checksum, one.batches))) for one in topic.partitions
            ),
        )
        for topic in reply.topics
    )
    return replace(reply, topics=tuple(topics))


def with_wrong_checksum(batch: bytes) -> bytes:
    """Return a batch of records that ends with another byte."""
    return b"".join((batch[:-1], bytes((batch[-1] ^ 0xFF,))))


def remember(known: dict[str, V], key: str, value: V, most: int = MOST_MEMBERS) -> None:
    """Add an entry, and remove the oldest one if there are too many."""
    if key not in known and len(known) >= most:
        del known[next(iter(known))]
    known[key] = value


def _of_open(known: Mapping[OpenConnection, V]) -> dict[OpenConnection, V]:
    return {each: value for each, value in known.items() if not each.is_closed}
