"""Writes the trace of a world of single active consumers: the same rows as all worlds."""

from __future__ import annotations

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.member.sac.actions import SacCallback
from fencepost.member.sac.states import SacMemberEvent, SacMemberState
from fencepost.simulation.kernel.observers import Violation
from fencepost.simulation.sac.clients import SacSubscriber
from fencepost.simulation.sac.observers import SacObserver, SacStep
from fencepost.simulation.trace.rows import TraceRows
from fencepost.simulation.trace.schema import RowKind


class SacTraceWriter(SacObserver):
    """Writes every event to a recorder. Actors are clients with their stream, and nodes."""

    def __init__(self, recorder: TraceRows) -> None:
        self._add = recorder.add
        self._partitions: dict[str, tuple[TopicPartition, ...]] = {}

    def _of(self, stream: str) -> tuple[TopicPartition, ...]:
        """Return a stream as a row has it: under its super stream's name, or as the only partition of its
        own."""
        if not self._partitions:
            for each in self.world.subscriptions:
                name = each.super_stream or each.stream
                self._partitions[each.stream] = (TopicPartition(name, max(each.partition_index, 0)),)
        return self._partitions[stream]

    def on_step(self, step: SacStep, now_us: int) -> None:
        """Write rows for consumers whose status changed."""
        reply = step.outcome.reply
        error = "" if reply is None or reply.error is None else str(reply.error)
        for key, one, old, new in step.changes:
            self._add(
                now_us,
                one.owner.rpartition("/")[0],
                RowKind.SAC_CONSUMER.value,
                state_from=str(old),
                state_to=str(new),
                partitions=self._of(key.stream),
                error=error,
                detail=f"{type(step.event).__name__} {one.connection}",
            )

    def on_leader(self, node: str, what: str, now_us: int) -> None:
        """Write a row."""
        self._add(now_us, node, RowKind.COORDINATOR.value, detail=what)

    def on_node(self, node: str, what: str, now_us: int) -> None:
        """Write a row."""
        self._add(now_us, node, RowKind.NODE.value, detail=what)

    def on_client_state(
        self,
        subscriber: SacSubscriber,
        event: SacMemberEvent,
        source: SacMemberState,
        target: SacMemberState,
        now_us: int,
    ) -> None:
        """Write a row."""
        self._add(
            now_us,
            subscriber.name,
            RowKind.MEMBER_STATE.value,
            state_from=str(source),
            state_to=str(target),
            partitions=self._of(subscriber.subscription.stream),
            detail=str(event),
        )

    def on_client_callback(
        self, subscriber: SacSubscriber, kind: SacCallback, phase: str, now_us: int
    ) -> None:
        """Write a row."""
        begins = RowKind.CALLBACK_BEGIN if phase == "begin" else RowKind.CALLBACK_END
        self._add(
            now_us,
            subscriber.name,
            begins.value,
            partitions=self._of(subscriber.subscription.stream),
            error="" if phase != "raised" else "CALLBACK_RAISED",
            detail=str(kind),
        )

    def on_host(self, client: str, what: str, now_us: int) -> None:
        """Write a row."""
        self._add(now_us, client, RowKind.HOST.value, detail=what)

    def on_fault(self, fault: str, phase: str, detail: str, now_us: int) -> None:
        """Write a row."""
        self._add(now_us, fault, RowKind.FAULT.value, state_to=phase, detail=detail)

    def on_faults_end(self, now_us: int) -> None:
        """Write a row."""
        self._add(now_us, "", RowKind.FAULTS_END.value)

    def on_violation(self, violation: Violation) -> None:
        """Write a row."""
        self._add(
            violation.t_us, "", RowKind.VIOLATION.value, error=violation.invariant, detail=violation.message
        )
