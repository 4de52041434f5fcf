"""The nemesis of a group of consumers, simulated or real."""

from __future__ import annotations

import random
from typing import Final

from fencepost.coordinator.protocol.classic import JoinGroupRequest, SyncGroupRequest
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.simulation.faults.nemesis import KafkaNemesis
from fencepost.simulation.faults.plan import FaultKind, FaultPlan, PlannedEvent
from fencepost.simulation.faults.stage import DisturbedBroker, DisturbedMember, Stage
from fencepost.simulation.kafka.requests import moves_epoch
from fencepost.simulation.kernel.rules import (
    Direction,
    Fate,
    Matching,
    Message,
    Verdict,
    cutting,
    delaying,
    dropping,
)
from fencepost.simulation.kernel.supervisor import ProcessStatus
from fencepost.simulation.scenarios.values import Span

_ALIVE: Final = (ProcessStatus.RUNNING, ProcessStatus.FROZEN)


class GroupNemesis(KafkaNemesis[Stage]):
    """The nemesis of a group: it disturbs its members, its brokers and the network between them."""

    _tells_first = False

    def __init__(self, world: Stage, plan: FaultPlan) -> None:
        super().__init__(world, plan)
        self._scaled_away: set[str] = set()
        """Members that a step has stopped: they stay stopped until another step starts them."""
        self._actions = {
            FaultKind.RESTART: self._restart,
            FaultKind.START: self._start,
            FaultKind.STOP: self._stop,
            FaultKind.SUBSCRIBE: self._subscribe,
            FaultKind.CREATE_TOPIC: self._create_topic,
            FaultKind.GROW_TOPIC: self._grow_topic,
            FaultKind.DELETE_TOPIC: self._delete_topic,
            FaultKind.OPERATE: self._operate,
            FaultKind.MEMBER_CRASH: self._upon(self._alive, self.crash),
            FaultKind.MEMBER_FREEZE: self._upon(self._running, self.freeze),
            FaultKind.SLOW_CALLBACK: self._upon(self._alive, self.slow),
            FaultKind.CALLBACK_ERROR: self._upon(self._alive, self._callback_error),
            FaultKind.POLL_TIMEOUT: self._upon(self._alive, self._poll_timeout),
            FaultKind.COORDINATOR_CRASH: self._upon(self._leader, self._kill),
            FaultKind.BROKER_CRASH: self._upon(self._broker, self._kill),
            FaultKind.BROKER_PAUSE: self._upon(self._broker, self._pause),
            FaultKind.PRODUCER_TAKEOVER: self._upon(self._alive, self._producer_takeover),
            FaultKind.COORDINATOR_MOVE: self.move,
            FaultKind.COORDINATOR_UNAVAILABLE: self._coordinator_unavailable,
            FaultKind.APPEND_FAILURE: self.fail_appends,
            FaultKind.PARTITION: self._partition,
            FaultKind.SLOW_LINK: self._slow_link,
            FaultKind.LOSS: self._loss,
            FaultKind.CONNECTION_LOSS: self._upon(self._alive, self.cut),
            FaultKind.LOST_REQUEST: self._upon(self._running, self.lose),
            FaultKind.LOST_RESPONSE: self._lost_response,
        }

    def _alive(self, entry: PlannedEvent) -> DisturbedMember | None:
        """Return the member that an entry selects among those with a live process."""
        return self._chosen(entry, (host for host in self._world.members.values() if host.status in _ALIVE))

    def _running(self, entry: PlannedEvent) -> DisturbedMember | None:
        """Return the member that an entry selects among the running ones."""
        hosts = self._world.members.values()
        return self._chosen(entry, (host for host in hosts if host.status is ProcessStatus.RUNNING))

    # -- operations ---------------------------------------------------------------------------------------

    def _host(self, entry: PlannedEvent) -> DisturbedMember:
        return list(self._world.members.values())[entry.member]

    def _restart(self, entry: PlannedEvent) -> None:
        host = self._host(entry)
        host.protocol = entry.protocol or host.protocol
        host.strategies = entry.strategies or host.strategies
        if host.name in self._scaled_away or (host.status is ProcessStatus.STOPPED and not host.wanted):
            return
        runs = host.status is not ProcessStatus.CRASHED
        self.restart(entry, host, runs=runs, detail=f"{host.name} {entry.protocol}".rstrip())

    def _start(self, entry: PlannedEvent) -> None:
        host = self._host(entry)
        self._scaled_away.discard(host.name)
        host.protocol = entry.protocol or host.protocol
        host.strategies = entry.strategies or host.strategies
        host.start()

    def _stop(self, entry: PlannedEvent) -> None:
        host = self._host(entry)
        self._scaled_away.add(host.name)
        host.stop(come_back=False)
        if not entry.graceful:
            host.crash()

    def _subscribe(self, entry: PlannedEvent) -> None:
        host = self._host(entry)
        host.topics, host.pattern = entry.topics, entry.pattern
        self._tell(
            entry.kind, "begin", f"{host.name} {', '.join(entry.topics)} {entry.pattern or ''}".rstrip()
        )
        host.resubscribe()

    def _create_topic(self, entry: PlannedEvent) -> None:
        if not self._world.cluster.has_topic(entry.name):  # whose deletion may have been left out
            self._world.cluster.create_topic(entry.name, entry.partitions, entry.records_per_second)

    def _grow_topic(self, entry: PlannedEvent) -> None:
        if self._world.cluster.has_topic(entry.name):
            self._world.cluster.grow_topic(entry.name, entry.partitions)

    def _delete_topic(self, entry: PlannedEvent) -> None:
        if self._world.cluster.has_topic(entry.name):
            self._world.cluster.delete_topic(entry.name)

    def _operate(self, entry: PlannedEvent) -> None:
        self._tell(entry.kind, "begin", entry.name)
        self._world.operate(entry.name, entry.topics, entry.share)

    # -- members ------------------------------------------------------------------------------------------

    def _callback_error(self, entry: PlannedEvent, host: DisturbedMember) -> None:
        self.instant(entry, host.name, host.fail_callback)

    def _poll_timeout(self, entry: PlannedEvent, host: DisturbedMember) -> None:
        lasts_us = self._world.scenario.group.rebalance_timeout.us + entry.lasts_us
        host.stall(entry.at_us + self._before_quiet(entry, lasts_us))
        self._tell(entry.kind, "begin", host.name)

    def _producer_takeover(self, entry: PlannedEvent, host: DisturbedMember) -> None:
        timeout_ms = self._world.scenario.transactions.timeout.ms
        self.instant(entry, host.name, lambda: self._world.cluster.take_producer_over(host.name, timeout_ms))

    # -- the coordinator ------------------------------------------------------------------------------------

    def _kill(self, entry: PlannedEvent, broker: DisturbedBroker) -> None:
        broker.kill()
        self._befallen(entry, broker, broker.revive)

    def _pause(self, entry: PlannedEvent, broker: DisturbedBroker) -> None:
        broker.pause()
        self._befallen(entry, broker, broker.resume)

    def _leader(self, _: PlannedEvent) -> DisturbedBroker | None:
        return self._world.cluster.leader

    def _broker(self, entry: PlannedEvent) -> DisturbedBroker | None:
        """Return the broker that an entry selects among the running ones."""
        return self._chosen(entry, (each for each in self._world.cluster.brokers.values() if each.running))

    def _coordinator_unavailable(self, entry: PlannedEvent) -> None:
        lasts_us = self._before_quiet(entry, entry.lasts_us)
        self.instant(entry, "", lambda: self._world.cluster.unavailable(lasts_us))

    # -- the network ----------------------------------------------------------------------------------------

    def _ruled(self, entry: PlannedEvent, detail: str, rule: Matching) -> None:
        rules = self._world.network.rules
        rules.append(rule)

        def lift() -> None:
            if rule in rules:
                rules.remove(rule)

        self._lasting(entry, detail, lift)

    def _partition(self, entry: PlannedEvent) -> None:
        members = frozenset(self._some(entry.share, list(self._world.members)))
        brokers = frozenset(self._some(entry.brokers, list(self._world.cluster.brokers)))
        self._ruled(entry, _named(members, brokers), Matching(dropping, members=members, brokers=brokers))

    def _slow_link(self, entry: PlannedEvent) -> None:
        members = frozenset(self._some(entry.share, list(self._world.members)))
        samples = self._world.draws.samples(f"slow-link/{self._number}", Span(*entry.added).quantiles)
        self._ruled(entry, _named(members), Matching(delaying(samples), members=members))

    def _loss(self, entry: PlannedEvent) -> None:
        members = frozenset(self._some(entry.share, list(self._world.members)))
        rng = random.Random(self._rng.getrandbits(64))

        def lose(_: Message) -> Verdict:
            return Fate.CUT if rng.random() < 0.7 else Fate.DROP

        self._ruled(
            entry, _named(members), Matching(lose, members=members, chance=entry.probability, rng=rng)
        )

    def _lost_response(self, entry: PlannedEvent) -> None:
        if not entry.epoch_moved:
            self._upon(self._running, self.lose)(entry)
            return
        rule = Matching(
            cutting,
            direction=Direction.RESPONSE,
            kinds=(ConsumerGroupHeartbeatRequest, JoinGroupRequest, SyncGroupRequest),
            condition=lambda message: moves_epoch(message.request, message.response),
            limit=1,
        )
        self._once(entry, "the next that moves an epoch", rule)


def _named(*sets: frozenset[str]) -> str:
    return " | ".join(", ".join(sorted(names)) for names in sets)
