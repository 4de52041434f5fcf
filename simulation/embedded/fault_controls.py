"""Faults as a test adds and watches them."""

from __future__ import annotations

import random
from typing import Any, Literal, TypeAlias

import msgspec

from fencepost.coordinator.codec.registry import REGISTRY, ApiKey, api_name
from fencepost.coordinator.kinds import GroupMember
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.suggestions import suggestion
from fencepost.simulation.embedded.fault_rules import GROUP_FIELDS, TOPIC_FIELDS, FaultAction, FaultRule
from fencepost.simulation.embedded.faults import FaultInjector
from fencepost.simulation.embedded.groups import Who
from fencepost.simulation.embedded.scoped import F, ScopedControls
from fencepost.simulation.embedded.settings import (
    Api,
    Error,
    api_of,
    duration,
    error_of,
    flag,
    name_of,
    whole,
)
from fencepost.simulation.embedded.thread import awaiting, on_loop, until_done

Action: TypeAlias = (
    FaultAction
    | Literal[
        "error", "lose_response", "lose_request", "disconnect", "silent", "delay", "throttle", "corrupt"
    ]
)
"""The name of a fault's action, or a member of `FaultAction`."""
_TIMED = frozenset({FaultAction.DELAY, FaultAction.THROTTLE})

_MOST_THROTTLED_S = (2**31 - 1) // 1_000
"""A response has the time in milliseconds, with 32 bits."""


class FaultState(msgspec.Struct, frozen=True, kw_only=True):
    """A fault and its counts."""

    fault: int
    """Its number."""
    description: str
    """The call that made it."""
    matched: int
    """Number of requests that its selectors have matched."""
    met: int
    """Number of requests that it has acted on."""
    times: int | None
    """The number of requests after which it ends; None if it does not end."""
    is_over: bool
    """True if it has ended."""


class Fault:
    """A fault that was added. Its methods may be called from any thread."""

    def __init__(self, kafka: FaultControls[Any], number: int) -> None:
        self.thread = kafka.thread
        self.number = number
        self._kafka = kafka

    @property
    def _faults(self) -> FaultInjector:
        faults: FaultInjector = self._kafka.endpoint.faults
        return faults

    def _rule(self) -> FaultRule:
        return self._faults.find(self.number, self._kafka.prefix)

    @property
    @on_loop
    def state(self) -> FaultState:
        """The fault and its counts."""
        return self._state()

    def _state(self) -> FaultState:
        return state_of_fault(self._faults, self._rule())

    @on_loop
    def remove(self) -> FaultState:
        """End the fault.

        :raises FencepostError: if it has ended already.
        """
        rule = self._rule()
        if self._faults.is_over(rule):
            raise FencepostError(f"fault {self.number} has ended already: {rule}")
        self._faults.remove((rule,))
        self._kafka._called(rule.method, rule.arguments, state_to="end")
        return self._state()

    async def _wait_met(self, times: int = 1, *, timeout: float = 30.0) -> FaultState:  # noqa: ASYNC109
        rule = self._rule()
        wanted, limit = whole("times", times, 1, rule.times), duration("timeout", timeout)
        waiting = self._kafka.endpoint.observer.waiting
        if not await waiting.until(lambda: rule.met >= wanted or self._faults.is_over(rule), limit):
            raise TimeoutError(
                f"fault {self.number} has met {rule.met} of {wanted} requests after {limit:g} s, of "
                f"{rule.matched} that it matched: {rule}"
            )
        if rule.met < wanted:
            raise FencepostError(
                f"fault {self.number} was removed: it has met {rule.met} of {wanted} requests"
            )
        return state_of_fault(self._faults, rule)

    @until_done
    async def wait_met(self, times: int = 1, *, timeout: float = 30.0) -> FaultState:  # noqa: ASYNC109
        """Wait until the fault has acted on that many requests, and return its counts.

        :raises TimeoutError: if it takes longer than `timeout` seconds; the text has the counts.
        :raises FencepostError: if the fault ends before, or for a number beyond its `times`.
        """
        return await self._wait_met(times, timeout=timeout)

    @awaiting
    async def met(self, times: int = 1, *, timeout: float = 30.0) -> FaultState:  # noqa: ASYNC109
        """Do the same in a test that awaits: `await fault.met()`."""
        return await self._wait_met(times, timeout=timeout)


def state_of_fault(faults: FaultInjector, rule: FaultRule) -> FaultState:
    """Return a rule and its counts."""
    return FaultState(
        fault=rule.number,
        description=str(rule),
        matched=rule.matched,
        met=rule.met,
        times=rule.times,
        is_over=faults.is_over(rule),
    )


def _action_of(
    action: Action, error: Error | None, at_top: bool | None, seconds: float | None
) -> FaultAction:
    """Return the action of a fault.

    :raises FencepostError: for an unknown action, or arguments that it does not take.
    """
    try:
        what = FaultAction(action)
    except ValueError:
        names = [each.value for each in FaultAction]
        hint = suggestion(action, names, f"known are {', '.join(names)}")
        raise FencepostError(f"action {action!r} is unknown; {hint}") from None
    if (what is FaultAction.ERROR) != (error is not None):
        expected = "needs an error, such as NOT_COORDINATOR" if error is None else "takes no error"
        raise FencepostError(f"action {what.value!r} {expected}")
    if (what in _TIMED) != (seconds is not None):
        raise FencepostError(f"action {what.value!r} {'needs' if seconds is None else 'takes no'} seconds")
    if at_top is not None and (error is None or not isinstance(at_top, bool)):
        flag("at_top", at_top)
        raise FencepostError(f"action {what.value!r} takes no at_top")
    if what is FaultAction.THROTTLE and duration("seconds", seconds or 0.0) > _MOST_THROTTLED_S:
        raise FencepostError(f"seconds={seconds!r}: expected {_MOST_THROTTLED_S} at most, Kafka's limit")
    return what


def check_selectors(rule: FaultRule) -> None:
    """Refuse selectors that no request of the rule's API can match.

    :raises FencepostError: then.
    """
    if rule.api is None:
        return
    api, name = REGISTRY[rule.api], api_name(rule.api)
    for selector, kinds in (("group", GROUP_FIELDS), ("topic", TOPIC_FIELDS)):
        if getattr(rule, selector) is not None and api.request.ours.isdisjoint(kinds):
            raise FencepostError(
                f"{selector}={getattr(rule, selector)!r}: no request of {name} names a {selector}"
            )
    if rule.version is not None and not api.min_version <= rule.version <= api.max_version:
        raise FencepostError(
            f"version={rule.version}: {name} is spoken in versions {api.min_version} to {api.max_version}"
        )


class FaultControls(ScopedControls[F]):
    """The controls of a server with faults between its clients and its brokers."""

    @on_loop
    def lose_next_response(self, api: Api, member: Who | None = None, *, times: int = 1) -> None:
        """Carry out the next request of that API, and close its connection instead of responding.

        `member` is a `GroupMember`, or a member id, instance id or client id. The rule applies to all
        requests on that member's connections, including Fetch. Without `member`, it applies to the requests
        of all clients.

        :raises FencepostError: for an unknown API, a count below 1, or a member that can't be called so.
        """
        self._add(
            FaultRule(
                action=FaultAction.LOSE_RESPONSE,
                api=self._api(api),
                who=_name(member),
                times=whole("times", times, 1, None),
            )
        )

    @on_loop
    def fail_next(self, api: Api, error: Error, member: Who | None = None, *, times: int = 1) -> None:
        """Respond to the next request of that API with an error, and do not carry it out.

        If the API's response has an error for each part, each part gets it, but not the whole: for Fetch each
        partition, including those of its session. Errors about a fetch session or a group are set for the
        whole response. Metadata fails for each topic; with REBOOTSTRAP_REQUIRED it fails as a whole from
        version 13 on. If a response has no field for an error (Produce with acks=0), the connection is
        closed. `member` is as for `lose_next_response`.

        :raises FencepostError: for an unknown API or error, a count below 1, or a member that can't be
            called so.
        """
        rule = FaultRule(
            api=self._api(api), who=_name(member), times=whole("times", times, 1, None), error=error_of(error)
        )
        self._add(rule)

    @on_loop
    def delay(self, api: Api, seconds: float, member: Who | None = None, *, times: int | None = None) -> None:
        """Carry out requests of that API at once, but delay the responses by that many seconds; 0 ends it.

        The delay lasts until it is ended, or for `times` requests. Other requests on the same connection wait
        too, as with a slow broker. `member` is as for `lose_next_response`; 0 without it ends all delays of
        the API, those of single members too.

        :raises FencepostError: for an unknown API, an invalid length of time, a count below 1, or an invalid
            member.
        """
        key, who, delay_s = self._api(api), _name(member), duration("seconds", seconds)
        count = None if times is None else whole("times", times, 1, None)
        of_all = who is None and not delay_s
        for ended in self.endpoint.faults.remove_delays(key, who, self.prefix, of_all=of_all):
            self._called(ended.method, ended.arguments, state_to="end")
        if delay_s:
            self._add(FaultRule(action=FaultAction.DELAY, api=key, who=who, times=count, seconds=delay_s))

    @on_loop
    def disconnect(self, member: Who) -> None:
        """Close the connections that a member has used. Its client is free to connect again.

        `member` is as for `lose_next_response`. A client id closes all connections of such clients, including
        producers. In a scope, these are connections that use its groups, fetch its topics, or have a client
        id of it.

        :raises FencepostError: if no connection of such a member or client is open.
        """
        name = _called(member)
        found = self.endpoint.faults.disconnect(name, self.prefix)
        if not found:
            raise FencepostError(f"no connection of a member or client {name!r} is open")
        for each in found:
            self._called("disconnect", each)

    @on_loop
    def unmet(self) -> list[str]:
        """Return the faults that were requested and did not happen: a line for each call that still waits for
        requests.

        A test in which nothing goes wrong proves nothing. Delays without a number of requests do not count.
        """
        return [f"{rule} met {rule.met} of {rule.times}" for rule in self.endpoint.faults.unmet(self.prefix)]

    @on_loop
    def add_fault(
        self,
        action: Action,
        api: Api | None = None,
        *,
        error: Error | None = None,
        at_top: bool | None = None,
        seconds: float | None = None,
        member: Who | None = None,
        client_id: str | None = None,
        group: str | None = None,
        topic: str | None = None,
        partition: int | None = None,
        broker: int | None = None,
        version: int | None = None,
        times: int | None = 1,
        every: int = 1,
        probability: float = 1.0,
        seed: int = 0,
    ) -> Fault:
        """Do something to the requests that all these selectors match, and return the fault.

        `action` is "error" with an `error`, where a broker puts it, or with `at_top` at
        the top of the response (true) or in each of its elements (false); "delay" and "throttle" for some
        `seconds`; "lose_response", "lose_request", "disconnect", "silent", or "corrupt" for Fetch.

        A selector that is None matches all requests. `topic` and `partition` match requests that name them,
        among others; `group` requests about it. Of the requests that match, the fault acts on every
        `every`-th, with a `probability` that `seed` makes repeatable, and ends after `times` of them; None
        keeps it until it is removed.

        :raises FencepostError: for an unknown action, API or error, a value out of range, or arguments that
            the action does not take.
        """
        what = _action_of(action, error, at_top, seconds)
        if (
            isinstance(probability, bool)
            or not isinstance(probability, int | float)
            or not 0 < probability <= 1
        ):
            raise FencepostError(f"probability={probability!r}: expected a number above 0, 1 at most")
        whole("seed", seed, 0, None)
        key = None if api is None else self._api(api)
        if what is FaultAction.CORRUPT:
            if key not in (None, ApiKey.FETCH):
                raise FencepostError(f"add_fault('corrupt', {api!r}): only Fetch responses have records")
            key = ApiKey.FETCH
        if partition is not None and topic is None:
            raise FencepostError(f"partition={partition!r}: needs the topic of the partition")
        if broker is not None:
            self.endpoint.check_broker(broker)
        rule = FaultRule(
            action=what,
            error=None if error is None else error_of(error),
            at_top=at_top,
            seconds=0.0 if seconds is None else duration("seconds", seconds),
            api=key,
            who=_name(member),
            client_id=None if client_id is None else name_of("client_id", client_id, "a client id"),
            group=None if group is None else self._own("group", group, "a group id"),
            topic=None if topic is None else self._own("topic", topic),
            partition=None if partition is None else whole("partition", partition, 0, None),
            broker=broker,
            version=None if version is None else whole("version", version, 0, None),
            times=None if times is None else whole("times", times, 1, None),
            every=whole("every", every, 1, None),
            probability=probability,
            seed=seed,
            rng=random.Random(seed) if probability < 1 else None,
            made_by="add_fault",
        )
        self._add(rule)
        return Fault(self, rule.number)

    @on_loop
    def faults(self) -> list[FaultState]:
        """Return the faults with their counts: those that were added by any method, also after they end."""
        faults = self.endpoint.faults
        return [
            state_of_fault(faults, each) for each in faults.known(self.prefix).values() if not each.of_fence
        ]

    @on_loop
    def fault(self, number: int) -> Fault:
        """Return a fault by its number.

        :raises FencepostError: if there is none with it.
        """
        return Fault(self, self.endpoint.faults.find(number, self.prefix).number)

    @on_loop
    def remove_faults(self) -> int:
        """End all faults. Return their number."""
        rules = self.endpoint.faults.of_scope(self.prefix)
        self.endpoint.faults.remove(rules)
        for rule in rules:
            self._called(rule.method, rule.arguments, state_to="end")
        return len(rules)

    def _api(self, api: Api) -> int:
        """Return the number of an API that requests may have.

        :raises FencepostError: if there is no such API.
        """
        return api_of(api)

    def _check(self, rule: FaultRule) -> None:
        """Refuse a rule that no request can meet.

        :raises FencepostError: then.
        """
        check_selectors(rule)

    def _add(self, rule: FaultRule) -> None:
        self._check(rule)
        rule.prefix = self.prefix
        self._called(rule.method, rule.arguments)
        self.endpoint.faults.add(rule)


def _name(member: Who | None) -> str | None:
    return None if member is None else _called(member)


def _called(member: Who) -> str:
    if isinstance(member, GroupMember):
        return member.member_id
    return name_of("member", member, "one of members(), or a member id, instance id or client id")
