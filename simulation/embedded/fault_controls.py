"""Faults as a test adds and watches them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from fencepost.coordinator.codec.registry import REGISTRY, api_name
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.suggestions import suggestion
from fencepost.simulation.embedded.fault_rules import GROUP_FIELDS, TOPIC_FIELDS, FaultAction, FaultRule
from fencepost.simulation.embedded.faults import FaultInjector
from fencepost.simulation.embedded.settings import Error, duration, error_of, flag, whole
from fencepost.simulation.embedded.thread import awaiting, on_loop, until_done

if TYPE_CHECKING:
    from fencepost.simulation.embedded.controls import KafkaControls

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

    def __init__(self, kafka: KafkaControls[Any], number: int) -> None:
        self.thread = kafka.thread
        self.number = number
        self._kafka = kafka

    @property
    def _faults(self) -> FaultInjector:
        return self._kafka.endpoint.faults

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


def fault_rule(
    action: Action,
    *,
    error: Error | None,
    at_top: bool | None,
    seconds: float | None,
    times: int | None,
    every: int,
    probability: float,
    seed: int,
) -> FaultRule:
    """Return a rule without selectors, from the arguments of `add_fault`.

    :raises FencepostError: for an unknown action or error, a value out of range, or arguments that do not
        fit.
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
    if isinstance(probability, bool) or not isinstance(probability, int | float) or not 0 < probability <= 1:
        raise FencepostError(f"probability={probability!r}: expected a number above 0, 1 at most")
    whole("seed", seed, 0, None)
    if what is FaultAction.THROTTLE and duration("seconds", seconds or 0.0) > _MOST_THROTTLED_S:
        raise FencepostError(f"seconds={seconds!r}: expected {_MOST_THROTTLED_S} at most, Kafka's limit")
    return FaultRule(
        action=what,
        error=None if error is None else error_of(error),
        at_top=at_top,
        seconds=0.0 if seconds is None else duration("seconds", seconds),
        times=None if times is None else whole("times", times, 1, None),
        every=whole("every", every, 1, None),
        probability=probability,
        rng=random.Random(seed) if probability < 1 else None,
        made_by="add_fault",
    )


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
