"""The hooks that a world of single active consumers calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from fencepost.coordinator.protocol.sac import ConnectionId, ConsumerStatus, NotifyConsumer
from fencepost.coordinator.protocol.sac_records import SacConsumer, SacGroupKey, SacGroupValue
from fencepost.coordinator.sac.coordinator import SacInput, SacOutcome
from fencepost.member.sac.actions import SacCallback
from fencepost.member.sac.offsets import OffsetSpecification
from fencepost.member.sac.states import SacMemberEvent, SacMemberState
from fencepost.simulation.judge.base import FindingReporter
from fencepost.simulation.kernel.observers import FindingReport, WorldObserver

if TYPE_CHECKING:
    from fencepost.simulation.sac.clients import SacSubscriber
    from fencepost.simulation.sac.world import SacWorld


ABSENT = ConsumerStatus.UNREGISTERED


class StatusChange(NamedTuple):
    """A consumer whose status changed in a step."""

    key: SacGroupKey
    consumer: SacConsumer
    before: ConsumerStatus
    after: ConsumerStatus


class SacStep(msgspec.Struct, dict=True):
    """A step of the coordinator, with all groups before and after it."""

    node: str
    event: SacInput
    outcome: SacOutcome
    before: Mapping[SacGroupKey, SacGroupValue]
    after: Mapping[SacGroupKey, SacGroupValue]

    @cached_property
    def changes(self) -> Sequence[StatusChange]:
        """Consumers whose status changed."""
        return tuple(_status_changes(self.before, self.after))


class SacObserver(WorldObserver, declares_hooks=True):
    """The base of what observes single active consumers. Times are virtual microseconds."""

    world: SacWorld

    def attach(self, world: SacWorld, report: FindingReport) -> None:
        """Called once, before anything happens."""
        self.world = world

    def on_step(self, step: SacStep, now_us: int) -> None:
        """The coordinator made a step. Its effects come next."""

    def on_leader(self, node: str, what: str, now_us: int) -> None:
        """A node begins to `load`, is `active`, has to `resign`, or its leadership ended in a `crash`."""

    def on_node(self, node: str, what: str, now_us: int) -> None:
        """A node: `crash`, `restart`, or `left` (the cluster)."""

    def on_connection(self, connection: ConnectionId, owner: str, opened: bool, now_us: int) -> None:
        """A connection's process begins or ends on its node."""

    def on_let_go(self, connection: ConnectionId, owner: str, now_us: int) -> None:
        """A connection got its client's last answer, to a step-down, and lets the group choose."""

    def on_log_opened(self, owner: str, offset: int, is_stale: bool, now_us: int) -> None:
        """A node opened the log for an active consumer. `is_stale`: for the answer to an earlier update."""

    def on_listed(
        self, groups: Sequence[Mapping[str, object]], consumers: Sequence[object], now_us: int
    ) -> None:
        """Operators listed the groups, and the consumers of each."""

    def on_lost_message(self, message: NotifyConsumer, now_us: int) -> None:
        """A message of the coordinator to a connection will never arrive: the connection's node was lost
        before."""

    def on_client_state(
        self,
        subscriber: SacSubscriber,
        /,
        event: SacMemberEvent,
        source: SacMemberState,
        target: SacMemberState,
        now_us: int,
    ) -> None:
        """A consumer moved along an arrow of its table."""

    def on_client_callback(
        self, subscriber: SacSubscriber, /, kind: SacCallback, phase: str, now_us: int
    ) -> None:
        """A callback reached `begin`, `end` or `raised`."""

    def on_client_update(
        self, subscriber: SacSubscriber, /, correlation: int, active: bool, now_us: int
    ) -> None:
        """A client received an update on its consumer's activity; the consumer takes it in next."""

    def on_client_answer(
        self, subscriber: SacSubscriber, /, correlation: int, offset: OffsetSpecification, now_us: int
    ) -> None:
        """A consumer answered an update."""

    def on_client_credit(self, subscriber: SacSubscriber, /, chunks: int, now_us: int) -> None:
        """A consumer granted credit for that many chunks."""

    def on_processed(self, subscriber: SacSubscriber, /, offset: int, now_us: int) -> None:
        """An application finished with a message."""

    def on_host(self, client: str, what: str, now_us: int) -> None:
        """A client's process: `start`, `stop` (begins), `stopped`, `crash`, `freeze`, `thaw`."""


class SacJudge(FindingReporter, SacObserver):
    """A judge of single active consumers."""

    world: SacWorld


def _status_changes(
    before: Mapping[SacGroupKey, SacGroupValue], after: Mapping[SacGroupKey, SacGroupValue]
) -> Iterator[StatusChange]:
    for key in dict.fromkeys((*before, *after)):
        old, new = before.get(key), after.get(key)
        if old is new:
            continue
        was = {} if old is None else {(one.connection, one.subscription_id): one for one in old.consumers}
        for one in () if new is None else new.consumers:
            earlier = was.pop((one.connection, one.subscription_id), None)
            if earlier is None or earlier.status is not one.status:
                yield StatusChange(key, one, ABSENT if earlier is None else earlier.status, one.status)
        for gone in was.values():
            yield StatusChange(key, gone, gone.status, ABSENT)
