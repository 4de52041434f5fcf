"""The hooks that a world of single active consumers calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fencepost.coordinator.protocol.sac import ConnectionId, NotifyConsumer
from fencepost.coordinator.protocol.sac_records import SacGroupKey, SacGroupValue
from fencepost.coordinator.sac.coordinator import SacInput, SacOutcome
from fencepost.member.sac.actions import SacCallback
from fencepost.member.sac.offsets import OffsetSpecification
from fencepost.member.sac.states import SacMemberEvent, SacMemberState
from fencepost.simulation.checkers.base import FindingReporter
from fencepost.simulation.kernel.observers import Report, WorldObserver

if TYPE_CHECKING:
    from fencepost.simulation.sac.clients import SacSubscriber
    from fencepost.simulation.sac.world import SacWorld


class SacObserver(WorldObserver, declares_hooks=True):
    """The base of what observes single active consumers. Times are virtual microseconds."""

    world: SacWorld

    def attach(self, world: SacWorld, report: Report) -> None:
        """Called once, before anything happens."""
        self.world = world

    def on_step(
        self,
        node: str,
        event: SacInput,
        outcome: SacOutcome,
        before: Mapping[SacGroupKey, SacGroupValue],
        now_us: int,
    ) -> None:
        """The coordinator made a step; `before` is how the groups were. Its effects come next."""

    def on_leader(self, node: str, what: str, now_us: int) -> None:
        """A node begins to `load`, is `active`, has to `resign`, or its leadership ended in a `crash`."""

    def on_node(self, node: str, what: str, now_us: int) -> None:
        """A node: `crash`, `restart`, or `left` (the cluster)."""

    def on_connection(self, connection: ConnectionId, owner: str, opened: bool, now_us: int) -> None:
        """A connection's process begins or ends on its node."""

    def on_let_go(self, connection: ConnectionId, owner: str, now_us: int) -> None:
        """A connection got its client's last answer, to a step-down, and lets the group choose."""

    def on_lost_message(self, message: NotifyConsumer, now_us: int) -> None:
        """What the coordinator told a connection will never arrive: its node was lost before."""

    def on_client_state(
        self,
        subscriber: SacSubscriber,
        event: SacMemberEvent,
        source: SacMemberState,
        target: SacMemberState,
        now_us: int,
    ) -> None:
        """A consumer moved along an arrow of its table."""

    def on_client_callback(
        self, subscriber: SacSubscriber, kind: SacCallback, phase: str, now_us: int
    ) -> None:
        """A callback reached `begin`, `end` or `raised`."""

    def on_client_update(
        self, subscriber: SacSubscriber, correlation: int, active: bool, now_us: int
    ) -> None:
        """A client heard whether its consumer is to be active; the consumer takes it in next."""

    def on_client_answer(
        self, subscriber: SacSubscriber, correlation: int, offset: OffsetSpecification, now_us: int
    ) -> None:
        """A consumer answered an update."""

    def on_processed(self, subscriber: SacSubscriber, offset: int, now_us: int) -> None:
        """An application finished with a message."""

    def on_host(self, client: str, what: str, now_us: int) -> None:
        """A client's process: `start`, `stop` (begins), `stopped`, `crash`, `freeze`, `thaw`."""


class SacChecker(FindingReporter, SacObserver):
    """A checker of single active consumers."""

    world: SacWorld
