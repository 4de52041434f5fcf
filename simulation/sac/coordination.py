"""Checks the coordinator's groups after each step, and all of them at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fencepost.coordinator.protocol import sac
from fencepost.coordinator.protocol.sac_records import SacConsumer, SacGroupKey, SacGroupValue
from fencepost.coordinator.sac.coordinator import SacCoordinator
from fencepost.simulation.sac import model
from fencepost.simulation.sac.exclusive import Exclusive
from fencepost.simulation.sac.figures import Figures
from fencepost.simulation.sac.observers import ABSENT, SacJudge, SacStep

_SETTLED = (model.ACTIVE, model.WAITS)
_TOLD_NOTHING = ("demoted", "early", "abandoned")
"""Windows that close only when something else happens: no consumer is told to step down."""
_REPLAY_EVERY = 40
"""Steps that wrote records between two comparisons with a replay."""


class SacCoordination(SacJudge):
    """Checks what the coordinator does; `exclusive` knows which clients consider themselves active."""

    def __init__(self, figures: Figures, exclusive: Exclusive) -> None:
        self._figures = figures
        self._exclusive = exclusive
        self._two: set[SacGroupKey] = set()
        """Groups that have two active consumers, since one was lost a second time before it had reported."""
        self._put_out: set[SacGroupKey] = set()
        """Groups from which an operator removed a consumer whose connection is alive: it never notices."""
        self._lost: set[sac.ConnectionId] = set()
        """Connections whose last message was lost."""
        self._steps = 0
        self._calm_us = 0
        """Time at which the last fault ended, in microseconds."""

    def on_faults_end(self, now_us: int) -> None:
        """Note the time from which groups can settle."""
        self._calm_us = now_us

    def on_step(self, step: SacStep, now_us: int) -> None:
        """Check that a group has at most one active consumer."""
        event, outcome, groups = step.event, step.outcome, step.after
        self._figures.counts["commands"] += outcome.reply is not None
        for effect in outcome.effects:
            if isinstance(effect, sac.NotifyConsumer):
                self._figures.counts["activations" if effect.active else "step downs"] += 1
                self._lost.discard(effect.connection)
        if not outcome.records:
            return
        for key, one, old, new in step.changes:
            if isinstance(event, sac.EvaluateGroup) and new is ABSENT and self._is_alive(one.connection):
                self._put_out.add(key)
            if old is model.FORGOTTEN_ACTIVE and new is model.LOST_ACTIVE:
                self._two.add(key)
        for key, group in groups.items():
            if group is not step.before.get(key):
                self._one_active(key, group)
        self._steps += 1
        if self._steps % _REPLAY_EVERY == 0:
            self._replay()

    def _is_alive(self, connection: str) -> bool:
        return self.world.cluster.connection(connection) is not None

    @property
    def _live(self) -> SacCoordinator:
        host = self.world.cluster.host
        assert host is not None
        return host.coordinator

    def _one_active(self, key: SacGroupKey, group: SacGroupValue) -> None:
        active = [one.connection for one in group.consumers if one.status in model.HOLDS]
        if len(active) <= 1:
            self._two.discard(key)
        elif key not in self._two:
            self.report("sac-one-active", f"{key.stream}: {' and '.join(active)} are active")

    def _replay(self) -> None:
        loaded = SacCoordinator()
        loaded.replay(self.world.cluster.journal, self.world.loop.now_us // 1_000)
        if loaded.hard_state() != self._live.hard_state():
            self.report("journal-replay", "a replay of the journal gives different groups")

    def on_lost_message(self, message: sac.NotifyConsumer, now_us: int) -> None:
        """Note that the last message to a connection was lost: nothing repairs that, as in RabbitMQ."""
        self._lost.add(message.connection)
        self._figures.counts["messages lost"] += 1

    def on_listed(
        self, groups: Sequence[Mapping[str, object]], consumers: Sequence[object], now_us: int
    ) -> None:
        """Check what operators see against the groups."""
        held = sorted(self._live.state.groups.items())
        right_groups = [
            {
                "stream": key.stream,
                "reference": key.consumer_name,
                "partition_index": group.partition_index,
                "consumers": len(group.consumers),
            }
            for key, group in held
        ]
        right_consumers = [
            [
                {
                    "subscription_id": one.subscription_id,
                    "connection_name": one.owner,
                    "state": _shown(one.status),
                }
                for one in group.consumers
            ]
            for _, group in held
        ]
        if groups != right_groups or consumers != right_consumers:
            self.report("sac-replies", f"the listing {groups} {consumers} differs from the groups")

    # -- at the end -----------------------------------------------------------------------------------------

    def on_end(self, now_us: int) -> None:
        """Check that each group that had time to settle has one active consumer, the right one, and that it
        knows."""
        host = self.world.cluster.host
        if host is not None:
            self._replay()
        scenario = self.world.scenario
        if now_us < self._calm_us + scenario.settling_us or not scenario.keeps_up:
            return
        if host is None:
            self.report("sac-settled", "no node leads the coordinator")
            return
        groups = host.coordinator.state.groups
        expected = {
            subscriber.connection.owner: subscriber
            for client in self.world.clients.values()
            for subscriber in client.subscribers
            if subscriber.connection is not None
        }
        for key in self.world.group_keys:
            if key in self._put_out:
                continue
            wanted = {owner for owner, each in expected.items() if each.subscription.stream == key.stream}
            self._settled(key, groups.get(key), wanted)

    def _settled(self, key: SacGroupKey, group: SacGroupValue | None, wanted: set[str]) -> None:
        members = () if group is None else group.consumers
        if wanted != {one.owner for one in members}:
            self.report(
                "sac-settled",
                f"{key.stream}: clients {', '.join(sorted(wanted))} are there, the group has "
                f"{', '.join(one.owner for one in members)}",
            )
            return
        if group is None:
            return
        lost = any(one.connection in self._lost for one in members)
        active = [one for one in members if one.status is model.ACTIVE]
        for one in members:
            if one.status is model.FORGOTTEN_WAITS:
                self._figures.counts["left forgotten"] += 1
            elif one.status not in _SETTLED and not lost:
                self.report("sac-settled", f"{key.stream}: {one.connection} is still {one.status}")
        if lost:
            self._figures.counts["groups with a lost message"] += 1
            return
        if key in self._two:
            self._figures.counts["groups with two active"] += 1
        elif len(active) != 1:
            self.report("sac-settled", f"{key.stream} has {len(active)} active consumers")
        else:
            self._the_right_one(key, group, active[0])

    def _the_right_one(self, key: SacGroupKey, group: SacGroupValue, active: SacConsumer) -> None:
        right, connection, owner = model.right_one(group), active.connection, active.owner
        if group.partition_index != sac.SIMPLE and right is not None and right is not active:
            self.report("sac-settled", f"{key.stream}: {connection} is active in place of {right.connection}")
        holders = self._exclusive.holders.get(key.stream, {})
        if owner not in holders:
            self.report("sac-settled", f"{key.stream}: {connection} is active, and does not know")
        for other in holders:
            if other != owner:
                if self._exclusive.causes.get(other) in _TOLD_NOTHING:
                    self._figures.counts["clients that were told nothing"] += 1
                else:
                    self.report("sac-settled", f"{key.stream}: {other} takes itself for active")


def _shown(status: sac.ConsumerStatus) -> str:
    """Return a status as `rabbitmq-streams list_stream_group_consumers` shows it."""
    connectivity, _, activity = status.value.lower().partition("_")
    return f"{activity} ({'presumed down' if connectivity == 'forgotten' else connectivity})"
