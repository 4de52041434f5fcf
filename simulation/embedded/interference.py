"""What stands between clients and brokers: answers that get lost, come late, or are errors instead.

Rules wait for the next request that they are about. The brokers behind them know nothing of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Set
from functools import partial
from typing import Any

import msgspec

from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.server.services import (
    NO_REPLY,
    Asked,
    Handler,
    OpenConnection,
    Services,
    Unanswered,
)
from fencepost.simulation.embedded.refusals import can_fail, refused


class Rule(msgspec.Struct, kw_only=True):
    """Something that happens to answers of one API; `times` None for all of them."""

    api: ApiKey
    who: str | None = None
    """A member id, an instance id or a client id; None for everybody."""
    times: int | None = 1
    met: int = 0
    """How many requests it was about so far."""
    error: ErrorCode | None = None
    delay_s: float = 0.0
    lost: bool = False

    def __str__(self) -> str:
        verb = "lose_next_response" if self.lost else "delay" if self.error is None else "fail_next"
        arguments = [repr(self.api.name.title().replace("_", ""))]
        if self.error is not None:
            arguments.append(repr(self.error.name))
        elif self.delay_s:
            arguments.append(f"{self.delay_s:g}")
        if self.who is not None:
            arguments.append(repr(self.who))
        return f"{verb}({', '.join(arguments)})"

    def is_about(self, request: Any, asked: Asked) -> bool:
        """Whether it is this request that the rule waits for."""
        if self.error is not None and not can_fail(request):
            return False
        return self.who is None or self.who in _names(request, asked)


_FEW_CONNECTIONS = 64
"""So many may be remembered before the closed ones among them are looked for."""


class _Heard:
    """Who was heard on a connection."""

    __slots__ = ("client_id", "members")

    def __init__(self) -> None:
        self.client_id = ""
        """The last one."""
        self.members: dict[MemberId, None] = {}
        """Those that are members; most clients are one, and some are none."""


class Interference:
    """The rules of all brokers, and the connections on which members and other clients were heard."""

    def __init__(self, note: Callable[[ApiKey, Any, Asked, Rule], None] = lambda *what: None) -> None:
        self._note = note
        self._rules: list[Rule] = []
        self._connections: dict[OpenConnection, _Heard] = {}
        self._many = _FEW_CONNECTIONS
        self._instance_ids: dict[MemberId, str] = {}
        """Of static members: they need not say it again on their next connection."""

    def add(self, rule: Rule) -> None:
        """From now on, behind the rules that there are."""
        self._rules.append(rule)

    def remove_delays(self, api: ApiKey, who: str | None, *, of_all: bool = False) -> None:
        """Answers of that API come at once again: to `who`, or to all, whoever the delays are about."""
        self._rules = [
            rule
            for rule in self._rules
            if not (rule.delay_s and rule.api is api and (of_all or rule.who == who))
        ]

    def clear(self) -> None:
        """No more rules."""
        self._rules.clear()

    @property
    def unmet(self) -> list[Rule]:
        """The rules that wait for more requests, of those that are about a number of them."""
        return [rule for rule in self._rules if rule.times is not None]

    def around(self, table: Mapping[int, Handler]) -> Mapping[int, Handler]:
        """These handlers, with the rules before them."""
        return {key: partial(self._handle, ApiKey(key), handler) for key, handler in table.items()}

    # -- connections ------------------------------------------------------------------------------------

    @property
    def connected(self) -> Set[MemberId]:
        """The members that were heard on a connection that is open."""
        return {member_id for _, heard in self._open() for member_id in heard.members}

    def disconnect(self, who: str) -> list[str]:
        """Close the connections of members of that id, instance id or client id, and of clients of that id.

        Answers the members' ids, or `who` if it is a client that is no member.
        """
        found: dict[str, None] = {}
        others = False
        for connection, heard in self._open():
            is_client = heard.client_id == who
            members = [each for each in heard.members if is_client or self._is_called(each, who)]
            if is_client or members:
                connection.close()
                found |= dict.fromkeys(members)
                others = others or not members
        return list(found) or [who] * others

    def _is_called(self, member_id: MemberId, who: str) -> bool:
        return who in (member_id, self._instance_ids.get(member_id))

    def forget(self, member_id: MemberId) -> None:
        """The member is none any more."""
        self._instance_ids.pop(member_id, None)
        for heard in self._connections.values():
            heard.members.pop(member_id, None)

    def _open(self) -> list[tuple[OpenConnection, _Heard]]:
        return [each for each in self._connections.items() if not each[0].is_closed]

    def _listen(self, request: Any, reply: Any, asked: Asked) -> None:
        """A member that gets its id here has none in its request. One that is none any more is forgotten."""
        heard = self._connections.get(asked.connection)
        if heard is None:
            if len(self._connections) >= self._many:
                self._connections = dict(self._open())
                self._many = max(_FEW_CONNECTIONS, 2 * len(self._connections))
            heard = self._connections[asked.connection] = _Heard()
        heard.client_id = asked.context.client_id or heard.client_id
        member_id = getattr(request, "member_id", None) or getattr(reply, "member_id", None)
        leaves = getattr(request, "member_epoch", 0) < 0
        unknown = getattr(reply, "error_code", None) is ErrorCode.UNKNOWN_MEMBER_ID
        if member_id and not leaves and not unknown:
            heard.members[member_id] = None
            if instance_id := getattr(request, "instance_id", None):
                self._instance_ids[member_id] = instance_id

    # -- requests ---------------------------------------------------------------------------------------

    def _handle(self, api: ApiKey, handler: Handler, services: Services, request: Any, asked: Asked) -> Any:
        rules = self._about(api, request, asked)
        if not rules:
            reply = handler(services, request, asked)
            self._listen(request, reply, asked)
            return reply
        for rule in rules:
            self._note(api, request, asked, rule)
            rule.met += 1
            if rule.met == rule.times:
                self._rules.remove(rule)
        error = next((rule.error for rule in rules if rule.error is not None), None)
        if error is None:
            reply = handler(services, request, asked)
            self._listen(request, reply, asked)
        else:
            reply = refused(handler, services, request, asked, error)
        lost = reply is None or any(rule.lost for rule in rules)
        delay_s = sum(rule.delay_s for rule in rules)
        if reply is NO_REPLY or (delay_s == 0 and not isinstance(reply, asyncio.Future)):
            return self._answer(api, reply, lost)
        return services.loop.create_task(self._later(api, reply, lost, delay_s))

    def _about(self, api: ApiKey, request: Any, asked: Asked) -> list[Rule]:
        """The rules about a request, which fails once and is lost once: further such rules wait."""
        rules: list[Rule] = []
        fails = is_lost = False
        for rule in self._rules:
            if rule.api is not api or not rule.is_about(request, asked):
                continue
            if (rule.error is not None and fails) or (rule.lost and is_lost):
                continue
            fails, is_lost = fails or rule.error is not None, is_lost or rule.lost
            rules.append(rule)
        return rules

    @staticmethod
    def _answer(api: ApiKey, reply: Any, lost: bool) -> Any:
        if lost:
            raise Unanswered(f"the answer to {api.name} was lost on purpose")
        return reply

    async def _later(self, api: ApiKey, reply: Any, lost: bool, delay_s: float) -> Any:
        if isinstance(reply, asyncio.Future):
            reply = await reply
        await asyncio.sleep(delay_s)
        return self._answer(api, reply, lost)


def _names(request: Any, asked: Asked) -> Iterator[str | None]:
    """Everything by which the one who asks may be called."""
    for each in (request, *getattr(request, "groups", ()), *getattr(request, "members", ())):
        yield getattr(each, "member_id", None)
        yield getattr(each, "instance_id", None)
    yield asked.context.client_id
