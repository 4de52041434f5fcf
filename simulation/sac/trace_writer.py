"""Writes the trace of a world of single active consumers: the same rows as all worlds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.sac import ConsumerStatus
from fencepost.coordinator.protocol.sac_records import SacConsumer, SacGroupKey, SacGroupValue
from fencepost.coordinator.sac.coordinator import SacInput, SacOutcome
from fencepost.member.sac.actions import SacCallback
from fencepost.member.sac.states import SacMemberEvent, SacMemberState
from fencepost.simulation.kernel.observers import Violation
from fencepost.simulation.sac.clients import SacSubscriber
from fencepost.simulation.sac.observers import SacObserver
from fencepost.simulation.trace.rows import TraceRows
from fencepost.simulation.trace.schema import RowKind

ABSENT = ConsumerStatus.UNREGISTERED


def status_changes(
    before: Mapping[SacGroupKey, SacGroupValue], after: Mapping[SacGroupKey, SacGroupValue]
) -> Iterator[tuple[SacGroupKey, SacConsumer, ConsumerStatus, ConsumerStatus]]:
    """Group, consumer, and its status before and after, of all that changed in one step."""
    for key in dict.fromkeys((*before, *after)):
        old, new = before.get(key), after.get(key)
        if old is new:
            continue
        was = {} if old is None else {(one.connection, one.subscription_id): one for one in old.consumers}
        for one in () if new is None else new.consumers:
            earlier = was.pop((one.connection, one.subscription_id), None)
            if earlier is None or earlier.status is not one.status:
                yield key, one, ABSENT if earlier is None else earlier.status, one.status
        for gone in was.values():
            yield key, gone, gone.status, ABSENT


class SacTraceWriter(SacObserver):
    """Writes every event to a recorder. Actors are clients with their stream, and nodes."""

    def __init__(self, recorder: TraceRows) -> None:
        self._add = recorder.add
        self._partitions: dict[str, tuple[TopicPartition, ...]] = {}

    def _of(self, stream: str) -> tuple[TopicPartition, ...]:
        """A stream as a row has it: under its super stream's name, or as the only partition of its own."""
        if not self._partitions:
            for each in self.world.subscriptions:
                name = each.super_stream or each.stream
                self._partitions[each.stream] = (TopicPartition(name, max(each.partition_index, 0)),)
        return self._partitions[stream]

    def on_step(
        self,
        node: str,
        event: SacInput,
        outcome: SacOutcome,
        before: Mapping[SacGroupKey, SacGroupValue],
        now_us: int,
    ) -> None:
        """Rows for consumers whose status changed."""
        host = self.world.cluster.host
        assert host is not None
        error = "" if outcome.reply is None or outcome.reply.error is None else str(outcome.reply.error)
        for key, one, old, new in status_changes(before, host.coordinator.state.groups):
            self._add(
                now_us,
                one.owner.rpartition("/")[0],
                RowKind.SAC_CONSUMER.value,
                state_from=str(old),
                state_to=str(new),
                partitions=self._of(key.stream),
                error=error,
                detail=f"{type(event).__name__} {one.connection}",
            )

    def on_leader(self, node: str, what: str, now_us: int) -> None:
        """A row."""
        self._add(now_us, node, RowKind.COORDINATOR.value, detail=what)

    def on_node(self, node: str, what: str, now_us: int) -> None:
        """A row."""
        self._add(now_us, node, RowKind.NODE.value, detail=what)

    def on_client_state(
        self,
        subscriber: SacSubscriber,
        event: SacMemberEvent,
        source: SacMemberState,
        target: SacMemberState,
        now_us: int,
    ) -> None:
        """A row."""
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
        """A row."""
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
        """A row."""
        self._add(now_us, client, RowKind.HOST.value, detail=what)

    def on_fault(self, fault: str, phase: str, detail: str, now_us: int) -> None:
        """A row."""
        self._add(now_us, fault, RowKind.FAULT.value, state_to=phase, detail=detail)

    def on_faults_end(self, now_us: int) -> None:
        """A row."""
        self._add(now_us, "", RowKind.FAULTS_END.value)

    def on_violation(self, violation: Violation) -> None:
        """A row."""
        self._add(
            violation.t_us, "", RowKind.VIOLATION.value, error=violation.invariant, detail=violation.message
        )
