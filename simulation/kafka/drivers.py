"""Factories that make a member of a process's host: a driver for its protocol, and what belongs to the
driver."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, cast

from fencepost.member.base.config import ConsumerConfig
from fencepost.member.base.driver import MemberDriver
from fencepost.member.base.transport import TransportError
from fencepost.member.classic.assignors import ASSIGNORS
from fencepost.member.classic.config import ClassicConfig
from fencepost.member.classic.driver import ClassicDriver
from fencepost.member.consumer.driver import ConsumerDriver
from fencepost.simulation.kafka.member_observer import SimulatedMemberObserver
from fencepost.simulation.kafka.transport import SimulatedTransport

if TYPE_CHECKING:
    from fencepost.simulation.kafka.member import MemberHost

_ASK_AGAIN_US: Final = 100_000
"""Time until a consumer asks again for topics if it got no response, in microseconds."""


def consumer_driver(host: MemberHost, transport: SimulatedTransport) -> ConsumerDriver:
    """Make a member that speaks the KIP-848 protocol, with an id of its own."""
    config = ConsumerConfig(group_remote_assignor=host.world.scenario.group.assignor, **_settings(host))
    return ConsumerDriver(
        host.world.group_id,
        host.member_id,
        transport,
        host.clock,
        listener=host,
        config=config,
        rng=cast(random.Random, host.rng),
        observer=SimulatedMemberObserver(host.world, host),
    )


def classic_driver(host: MemberHost, transport: SimulatedTransport) -> ClassicDriver:
    """Make a member that speaks the classic protocol, with its assignor."""
    group = host.world.scenario.group
    config = ClassicConfig(
        session_timeout_ms=group.session_timeout.ms,
        heartbeat_interval_ms=group.heartbeat_interval.ms,
        metadata_max_age_ms=group.metadata_max_age.ms,
        **_settings(host),
    )
    return ClassicDriver(
        host.world.group_id,
        transport,
        host.clock,
        assignors=tuple(ASSIGNORS[name]() for name in host.strategies),
        listener=host,
        config=config,
        rng=cast(random.Random, host.rng),
        observer=SimulatedMemberObserver(host.world, host),
    )


def _settings(host: MemberHost) -> dict[str, Any]:
    scenario = host.world.scenario
    return {
        "max_poll_interval_ms": scenario.group.rebalance_timeout.ms,
        "request_timeout_ms": scenario.network.request_timeout.ms,
        "enable_auto_commit": scenario.application.commit == "auto",
        "auto_commit_interval_ms": scenario.application.auto_commit_interval.ms,
        "auto_offset_reset": "earliest",
        "group_instance_id": host.instance_id,
        "client_id": host.name,
    }


class MatchingSubscription:
    """A classic consumer's regular expression: the consumer itself checks repeatedly which topics exist.

    The protocol has only names. As long as nothing matches and no names are given, the consumer is not in the
    group.
    """

    def __init__(self, host: MemberHost, driver: MemberDriver, transport: SimulatedTransport) -> None:
        self._host = host
        self._driver = driver
        self._transport = transport
        self._subscriptions = 0

    def subscribe(self, topics: Iterable[str], pattern: str | None) -> None:
        """Subscribe to these names, and to the topics that the pattern matches now and later."""
        self._subscriptions += 1
        names = tuple(topics)
        if pattern is None:
            self._driver.subscribe(names)
        else:
            self._host.spawn(self._follow(names, pattern, self._subscriptions))

    async def _follow(self, names: tuple[str, ...], pattern: str, subscription: int) -> None:
        max_age_us = self._host.world.scenario.group.metadata_max_age.us
        while self._goes_on(subscription):
            try:
                matching = await self._transport.matching_topics(pattern)
            except TransportError:
                await self._host.pause_us(_ASK_AGAIN_US)
                continue
            if self._goes_on(subscription):
                self._driver.subscribe({*names, *matching})
            await self._host.pause_us(max_age_us)

    def _goes_on(self, subscription: int) -> bool:
        return subscription == self._subscriptions and not self._host.stopping
