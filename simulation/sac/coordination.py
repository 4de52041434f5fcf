"""Checks the coordinator's groups: each step by the model, their times, and all of them at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fencepost.coordinator.protocol import sac
from fencepost.coordinator.protocol.sac_records import SacGroupKey, SacGroupValue
from fencepost.coordinator.sac.coordinator import SacCoordinator
from fencepost.simulation.sac import model
from fencepost.simulation.sac.exclusive import Exclusive
from fencepost.simulation.sac.figures import Figures
from fencepost.simulation.sac.observers import ABSENT, SacJudge, SacStep
from fencepost.simulation.sac.steps import derived, differences, expected, read

_TOLD_NOTHING: Final = ("demoted", "early", "abandoned")
"""Windows that close only when something else happens: no consumer is told to step down."""
_EVERY: Final = 20
"""Steps between two looks at everything that is derived; a replay follows every second one."""
_LATE_MS: Final = 1_000
_SLOW_US: Final = 30_000_000
"""Time for messages, and for a connection's search for the coordinator, in addition to the configured times.
"""


class SacCoordination(SacJudge):
    """Checks what the coordinator does; `exclusive` knows which clients consider themselves active.

    Groups are timed only while a node leads: without a leader nothing can happen.
    """

    def __init__(self, figures: Figures, exclusive: Exclusive) -> None:
        self._figures = figures
        self._exclusive = exclusive
        self._known = model.NOTHING
        self._steps = 0
        self._two: set[SacGroupKey] = set()
        """Groups that have two active consumers, since one was lost a second time before it had reported."""
        self._put_out: set[SacGroupKey] = set()
        """Groups from which an operator removed a consumer whose connection is alive: it never notices."""
        self._lost: set[sac.ConnectionId] = set()
        """Connections whose last message was lost."""
        self._calm_us = 0
        """Time at which the last fault ended, in microseconds."""
        self._idle: dict[SacGroupKey, int] = {}
        """Time until which a group may lack an active consumer although a consumer is connected, in
        microseconds."""
        self._no_leader_us: int | None = 0
        """The time since when no node leads."""
        self._excused: set[SacGroupKey] = set()
        """Groups with a member whose last message was lost: nothing repairs that by itself."""

    def on_faults_end(self, now_us: int) -> None:
        """Note the time from which groups can settle."""
        self._calm_us = now_us

    def on_leader(self, node: str, what: str, now_us: int) -> None:
        """Look at times before a leader ends: the next one starts its timers afresh, and groups have more
        time."""
        if what in ("resign", "crash"):
            self._in_time(now_us)
            if self._no_leader_us is None:
                self._no_leader_us = now_us
        elif what == "active" and self._no_leader_us is not None:
            away_us, self._no_leader_us = now_us - self._no_leader_us, None
            for key in self._idle:
                self._idle[key] += away_us + model.LEADER_WAITS_MS * 1_000

    def on_step(self, step: SacStep, now_us: int) -> None:
        """Compare a step with what must follow from its event, and follow the groups that it changed."""
        event, outcome, state = step.event, step.outcome, self._live.state
        self._figures.counts["commands"] += outcome.reply is not None
        for effect in outcome.effects:
            if isinstance(effect, sac.NotifyConsumer):
                self._figures.counts["activations" if effect.active else "step downs"] += 1
                self._lost.discard(effect.connection)
        got = read(state)
        right = expected(self._known, event, got, now_us // 1_000)
        self.report_all(differences(event, right, got, outcome))
        self._known = got._replace(deadlines=right.after.deadlines)
        if outcome.records:
            self._follow(step, now_us)
        self._in_time(now_us)
        self._steps += 1
        if self._steps % _EVERY == 0:
            self.report_all(derived(self._known, state))
            if self._steps % (2 * _EVERY) == 0:
                self._replay()

    def _follow(self, step: SacStep, now_us: int) -> None:
        alive = self.world.cluster.connection
        for key, one, old, new in step.changes:
            if isinstance(step.event, sac.EvaluateGroup) and new is ABSENT and alive(one.connection):
                self._put_out.add(key)
            if old is model.FORGOTTEN_ACTIVE and new is model.LOST_ACTIVE:
                self._two.add(key)
        for key in dict.fromkeys((*step.before, *step.after)):
            if (group := step.after.get(key)) is not step.before.get(key):
                self._changed(key, group, now_us)

    @property
    def _live(self) -> SacCoordinator:
        host = self.world.cluster.host
        assert host is not None
        return host.coordinator

    def _changed(self, key: SacGroupKey, group: SacGroupValue | None, now_us: int) -> None:
        """Check that a group has at most one active consumer, and begin its time if it has none."""
        consumers = () if group is None else group.consumers
        active = [one.connection for one in consumers if one.status in model.HOLDS]
        if len(active) <= 1:
            self._two.discard(key)
        elif key not in self._two:
            self.report("sac-one-active", f"{key.stream}: {' and '.join(active)} are active")
        statuses = {one.status for one in consumers}
        if model.ACTIVE in statuses or not model.CONNECTED.intersection(statuses):
            self._idle.pop(key, None)
            self._excused.discard(key)
        elif key not in self._idle:
            times = self.world.scenario.cluster
            limit_us = times.disconnected_timeout.us + 2 * times.request_timeout.us + times.command_timeout.us
            self._idle[key] = now_us + limit_us + _SLOW_US

    def _in_time(self, now_us: int) -> None:
        """Report connections that should have been forgotten, and groups without an active consumer."""
        for connection, deadline_ms in self._known.deadlines.items():
            if (late_ms := now_us // 1_000 - deadline_ms) > _LATE_MS:
                late = f"{connection} should have been forgotten {late_ms / 1e3:.1f} s ago"
                self.report("sac-timeout", late)
        over = [key for key, until in self._idle.items() if now_us > until and self._no_leader_us is None]
        for key in over:
            del self._idle[key]
            if key not in self._excused:
                self.report(
                    "sac-unblocked",
                    f"{key.stream}: a connected consumer waits, and none was active for longer than a lost"
                    " connection and a client that owes a response may take",
                )

    def _replay(self) -> None:
        loaded = SacCoordinator()
        loaded.replay(self.world.cluster.journal, self.world.loop.now_us // 1_000)
        if loaded.hard_state() != self._live.hard_state():
            self.report("journal-replay", "a replay of the journal gives different groups")

    def on_lost_message(self, message: sac.NotifyConsumer, now_us: int) -> None:
        """Excuse a group whose message was lost: it is never sent again, as in RabbitMQ."""
        self._lost.add(message.connection)
        self._excused.add(SacGroupKey("/", message.stream, message.consumer_name))
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
        host, scenario = self.world.cluster.host, self.world.scenario
        if host is not None:
            self._in_time(now_us)
            self.report_all(derived(self._known, host.coordinator.state))
            self._replay()
        if now_us < self._calm_us + scenario.settling_us or not scenario.keeps_up:
            return
        if host is None:
            self.report("sac-settled", "no node leads the coordinator")
            return
        expected = {
            subscriber.connection.owner: subscriber.subscription.stream
            for client in self.world.clients.values()
            for subscriber in client.subscribers
            if subscriber.connection is not None
        }
        for key in self.world.group_keys:
            if key not in self._put_out:
                wanted = sorted(owner for owner, stream in expected.items() if stream == key.stream)
                group = host.coordinator.state.groups.get(key)
                members = [] if group is None else [one.owner for one in group.consumers]
                if wanted != sorted({*members}):
                    self.report(
                        "sac-settled",
                        f"{key.stream}: clients {', '.join(wanted)} are there, the group has "
                        f"{', '.join(members)}",
                    )
                elif group is not None:
                    self._settled(key, group)

    def _settled(self, key: SacGroupKey, group: SacGroupValue) -> None:
        lost = any(one.connection in self._lost for one in group.consumers)
        active = [one for one in group.consumers if one.status is model.ACTIVE]
        for one in group.consumers:
            if one.status is model.FORGOTTEN_WAITS:
                self._figures.counts["left forgotten"] += 1
            elif one.status not in (model.ACTIVE, model.WAITS) and not lost:
                self.report("sac-settled", f"{key.stream}: {one.connection} is still {one.status}")
        if lost:
            self._figures.counts["groups with a lost message"] += 1
            return
        if key in self._two:
            self._figures.counts["groups with two active"] += 1
            return
        if len(active) != 1:
            self.report("sac-settled", f"{key.stream} has {len(active)} active consumers")
            return
        right, connection, owner = model.right_one(group), active[0].connection, active[0].owner
        if group.partition_index != sac.SIMPLE and right is not None and right is not active[0]:
            self.report("sac-settled", f"{key.stream}: {connection} is active in place of {right.connection}")
        holders = self._exclusive.holders.get(key.stream, {})
        if owner not in holders:
            self.report("sac-settled", f"{key.stream}: {connection} is active, and does not know")
        for other in [each for each in holders if each != owner]:
            if self._exclusive.causes.get(other) in _TOLD_NOTHING:
                self._figures.counts["clients that were told nothing"] += 1
            else:
                self.report("sac-settled", f"{key.stream}: {other} takes itself for active")


def _shown(status: sac.ConsumerStatus) -> str:
    """Return a status as `rabbitmq-streams list_stream_group_consumers` shows it."""
    connectivity, _, activity = status.value.lower().partition("_")
    return f"{activity} ({'presumed down' if connectivity == 'forgotten' else connectivity})"
