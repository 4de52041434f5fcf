"""What stands between clients and brokers: answers that get lost, come late, or are errors instead.

Rules wait for the next request that they are about. The brokers behind them know nothing of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
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
    error: ErrorCode | None = None
    delay_s: float = 0.0
    lost: bool = False

    def is_about(self, request: Any, asked: Asked) -> bool:
        """Whether it is this request that the rule waits for."""
        if self.error is not None and not can_fail(request):
            return False
        return self.who is None or self.who in _names(request, asked)


_FEW_CONNECTIONS = 64
"""So many may be remembered before the closed ones among them are looked for."""


class Interference:
    """The rules of all brokers, and the connections on which members and other clients were heard."""

    def __init__(self, note: Callable[[ApiKey, Any, Asked, Rule], None] = lambda *what: None) -> None:
        self._note = note
        self._rules: list[Rule] = []
        self._connections: dict[MemberId, dict[OpenConnection, None]] = {}
        self._names: dict[MemberId, set[str]] = {}
        """What members are called besides: instance ids, client ids."""
        self._clients: dict[OpenConnection, str] = {}
        """The client id that was heard last on each connection, also of those that are no members."""
        self._many = _FEW_CONNECTIONS

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

    def around(self, table: Mapping[int, Handler]) -> Mapping[int, Handler]:
        """These handlers, with the rules before them."""
        return {key: partial(self._handle, ApiKey(key), handler) for key, handler in table.items()}

    # -- members' connections ---------------------------------------------------------------------------

    def is_connected(self, member_id: MemberId) -> bool:
        """Whether a connection is open on which the member was heard."""
        return bool(self._open(member_id))

    def disconnect(self, who: str) -> list[str]:
        """Close the connections of members of that id, instance id or client id, and of clients of that id.

        Answers the members' ids, or `who` if it is a client that is no member.
        """
        found = [each for each in self._connections if who == each or who in self._names[each]]
        connections = {each: self._open(each) for each in found}
        others = [each for each, name in self._clients.items() if name == who and not each.is_closed]
        for opened in (*connections.values(), others):
            for connection in opened:
                connection.close()
        return [each for each, opened in connections.items() if opened] or [who] * bool(others)

    def forget(self, member_id: MemberId) -> None:
        """The member is none any more."""
        self._connections.pop(member_id, None)
        self._names.pop(member_id, None)

    def _open(self, member_id: MemberId) -> list[OpenConnection]:
        return [each for each in self._connections.get(member_id, ()) if not each.is_closed]

    def _heard(self, request: Any, reply: Any, asked: Asked) -> None:
        """A member that gets its id here has none in its request. One that is none any more is forgotten."""
        if asked.context.client_id:
            self._clients[asked.connection] = asked.context.client_id
            if len(self._clients) > self._many:
                self._clients = {each: name for each, name in self._clients.items() if not each.is_closed}
                self._many = max(_FEW_CONNECTIONS, 2 * len(self._clients))
        member_id = getattr(request, "member_id", None) or getattr(reply, "member_id", None)
        leaves = getattr(request, "member_epoch", 0) < 0
        unknown = getattr(reply, "error_code", None) is ErrorCode.UNKNOWN_MEMBER_ID
        if member_id and not leaves and not unknown:
            known = self._connections.setdefault(member_id, {})
            if asked.connection not in known:
                for connection in [each for each in known if each.is_closed]:
                    del known[connection]
                known[asked.connection] = None
            names = (getattr(request, "instance_id", None), asked.context.client_id)
            self._names.setdefault(member_id, set()).update(filter(None, names))

    # -- requests ---------------------------------------------------------------------------------------

    def _handle(self, api: ApiKey, handler: Handler, services: Services, request: Any, asked: Asked) -> Any:
        rules = [rule for rule in self._rules if rule.api is api and rule.is_about(request, asked)]
        if not rules:
            reply = handler(services, request, asked)
            self._heard(request, reply, asked)
            return reply
        for rule in rules:
            self._note(api, request, asked, rule)
            if rule.times is not None:
                rule.times -= 1
                if rule.times == 0:
                    self._rules.remove(rule)
        error = next((rule.error for rule in rules if rule.error is not None), None)
        if error is None:
            reply = handler(services, request, asked)
            self._heard(request, reply, asked)
        else:
            reply = refused(handler, services, request, asked, error)
        lost = reply is None or any(rule.lost for rule in rules)
        delay_s = sum(rule.delay_s for rule in rules)
        if reply is NO_REPLY or (delay_s == 0 and not isinstance(reply, asyncio.Future)):
            return self._answer(api, reply, lost)
        return services.loop.create_task(self._later(api, reply, lost, delay_s))

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
