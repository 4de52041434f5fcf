"""The host of a coordinator: the one loop that runs it, in every world.

A step is always the same: handle the event, append its records, apply them, notify the observers, carry out
the effects, and set the timer. Only then the reply may be sent. Served, simulated and compared coordinators
differ only in the clock and the hooks that they give to their host.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar, cast

from fencepost.coordinator.config import GroupConfig
from fencepost.coordinator.consumer.regular_expressions import resolving
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatResponse
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.outcome import (
    NOTHING,
    DeadlineReached,
    ParkedResponse,
    ResolveRegularExpressions,
    Response,
)
from fencepost.coordinator.protocol.slices import Sliced
from fencepost.coordinator.protocol.topics import TopicsImage

NONE: Final = ErrorCode.NONE
R_contra = TypeVar("R_contra", contravariant=True)
C = TypeVar("C", bound="Coordinator")
G = TypeVar("G", bound="CoordinatorOfGroups")


class AppendFailed(Exception):
    """A journal could not take a batch, and has none of it. `code` is the log's own error."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Journal(Protocol[R_contra]):
    """A coordinator's journal: it keeps all records of a batch, or none."""

    def append(self, records: tuple[R_contra, ...]) -> None:
        """Keep one batch.

        :raises AppendFailed: if it is not kept.
        """


class Coordinator(Protocol):
    """The pure coordinator in a host. Its outcomes have `records`, a `reply` and `effects`."""

    def handle(self, event: Any, now_ms: int) -> Any:
        """Return the outcome of an event."""

    def apply_batch(self, records: Any) -> None:
        """Apply the records of one outcome."""

    def not_written(self, event: Any, outcome: Any, code: ErrorCode, now_ms: int) -> Any:
        """Return the outcome to use instead of one whose records could not be appended."""

    def next_deadline(self) -> int | None:
        """Return the time at which `DeadlineReached` is due, in ms; None if nothing is timed."""


class CoordinatorOfGroups(Coordinator, Protocol):
    """A coordinator of Kafka's groups: it can be configured and given up, and knows the cluster's topics."""

    @property
    def image(self) -> TopicsImage:
        """Return the topics as of the last `TopicsChanged`."""

    def set_group_config(self, group_id: str, config: GroupConfig | None) -> None:
        """Set the settings of a group, or remove them with None."""

    def unload(self) -> tuple[ParkedResponse, ...]:
        """Return responses to parked requests: the groups have another coordinator from now on."""


class CoordinatorTimer(Protocol):
    """A timer that was set."""

    def cancel(self) -> object:
        """Keep it from firing."""


class CoordinatorClock(Protocol):
    """The clock of a host: the event loop's, a virtual one, or one that is moved by its owner."""

    def now_ms(self) -> int:
        """Return the time in milliseconds."""

    def call_at(self, when_ms: int, callback: Callable[[], None], /) -> CoordinatorTimer:
        """Run the callback when `now_ms` has reached that time."""


class NoTimer:
    """A timer that never fires, as its clock is moved by its owner."""

    def cancel(self) -> None:
        """Do nothing."""


_NO_TIMER: Final = NoTimer()


class ManualClock:
    """A clock that its owner moves by setting `time_ms`. No timer fires: call `CoordinatorHost.run_due`."""

    __slots__ = ("time_ms",)

    def __init__(self, time_ms: int = 0) -> None:
        self.time_ms = time_ms

    def now_ms(self) -> int:
        """Return the time in milliseconds."""
        return self.time_ms

    def call_at(self, when_ms: int, callback: Callable[[], None], /) -> CoordinatorTimer:
        """Do nothing: the owner of the clock runs due timers."""
        return _NO_TIMER


Waiter: TypeAlias = Any
"""The world's own handle of a request whose response is parked: a future, a simulated call."""


class HostHooks:
    """The world around a host: observers of its steps, and outputs. By default nothing happens."""

    __slots__ = ()

    def steady(self, event: Any, outcome: Any, now_ms: int) -> None:
        """Observe a consumer's heartbeat that changed nothing. It is the hot path."""

    def stepped(self, event: Any, outcome: Any, now_ms: int) -> None:
        """Observe any other step, before its effects are carried out."""

    def deliver(self, responses: Sequence[tuple[Waiter, Response]], outcome: Any) -> None:
        """Send parked responses. `outcome` is of the step that released them."""

    def later(self, work: Sliced[None]) -> None:
        """Run work behind the reply, slice by slice: the resolution of regular expressions."""

    def may_describe(self) -> Callable[[str], bool] | None:
        """Return what decides which topics the client of the present request may see; None for all."""

    def turn(self) -> Iterator[None]:
        """Yield before each timer that may run now; once it ends, other work has its turn first."""
        return itertools.repeat(None)

    def carry_out(self, effect: Any) -> None:
        """Carry out an effect that is the world's business."""

    def configured(self, group_id: str, config: Any) -> None:
        """Observe that the settings of a group are about to change."""

    def closing(self) -> None:
        """Observe that the coordinator is about to be given up."""


class CoordinatorHost(Generic[C]):
    """One coordinator with its journal, its clock and its timer; a `None` journal keeps no records.

    `failure` says why the records of the last step were not kept; it is None if they were.
    """

    __slots__ = (
        "_armed_ms",
        "_handle",
        "_hooks",
        "_now_ms",
        "_parked",
        "_timer",
        "clock",
        "closed",
        "coordinator",
        "failure",
        "journal",
    )

    def __init__(
        self,
        coordinator: C,
        journal: Journal[Any] | None,
        clock: CoordinatorClock | None = None,
        hooks: HostHooks | None = None,
    ) -> None:
        self.coordinator = coordinator
        self.journal = journal
        self.clock: CoordinatorClock = ManualClock() if clock is None else clock
        self.closed = False
        self.failure: AppendFailed | None = None
        self._hooks = HostHooks() if hooks is None else hooks
        self._handle = coordinator.handle
        self._now_ms = self.clock.now_ms
        self._parked: dict[int, Waiter] = {}
        self._timer: CoordinatorTimer | None = None
        self._armed_ms: int | None = None

    # -- one step ---------------------------------------------------------------------------------------

    def process(self, event: Any, at_ms: int | None = None) -> Any:
        """Take one step with all that follows from it, and return its outcome: the reply may be sent.

        It happens now, by the host's clock, or at `at_ms`.
        """
        now_ms = self._now_ms() if at_ms is None else at_ms
        outcome = self.step(event, now_ms)
        reply = outcome.reply
        if (
            type(reply) is ConsumerGroupHeartbeatResponse
            and not outcome.records
            and not outcome.effects
            and reply.error_code is NONE
        ):
            # It moves the member's timers later, and no deadline to an earlier time.
            self._hooks.steady(event, outcome, now_ms)
            return outcome
        self._hooks.stepped(event, outcome, now_ms)
        if outcome is NOTHING:
            return outcome
        if outcome.effects:
            self._carry_out(outcome)
        # State that is in no record has deadlines, too: a round of a classic group, an id that was given out.
        self._arm()
        return outcome

    def step(self, event: Any, now_ms: int) -> Any:
        """Handle an event, append and apply its records. No observer is called, and no effect carried out.

        If the journal fails, nothing has changed and the reply tells the client so.
        """
        outcome = self._handle(event, now_ms)
        self.failure = None
        return self._keep(event, outcome, now_ms) if outcome.records else outcome

    def _keep(self, event: Any, outcome: Any, now_ms: int) -> Any:
        """Append and apply the records of an outcome; if the journal fails, return another outcome."""
        if self.journal is not None:
            try:
                self.journal.append(outcome.records)
            except AppendFailed as failure:
                self.failure = failure
                return self.coordinator.not_written(event, outcome, failure.code, now_ms)
        self.coordinator.apply_batch(outcome.records)
        return outcome

    def park(self, token: int, waiter: Waiter) -> None:
        """Keep a request whose response comes with a later step, or never."""
        self._parked[token] = waiter

    def configure(self: CoordinatorHost[G], group_id: str, config: GroupConfig | None) -> None:
        """Set the settings of a group, or remove them with None; then run the timers that are due."""
        self._hooks.configured(group_id, config)
        self.coordinator.set_group_config(group_id, config)
        self.run_due()

    # -- effects ----------------------------------------------------------------------------------------

    def _carry_out(self, outcome: Any) -> None:
        responses: list[ParkedResponse] = []
        for effect in outcome.effects:
            kind = type(effect)
            if kind is ParkedResponse:
                responses.append(effect)
            elif kind is ResolveRegularExpressions:
                self._hooks.later(self._resolution(effect, self._hooks.may_describe()))
            else:
                self._hooks.carry_out(effect)
        if responses:
            self._deliver(responses, outcome)

    def _deliver(self, responses: Sequence[ParkedResponse], outcome: Any) -> None:
        parked = self._parked
        waiting = [(parked.pop(one.token), one.response) for one in responses if one.token in parked]
        self._hooks.deliver(waiting, outcome)

    def _resolution(
        self, effect: ResolveRegularExpressions, may_describe: Callable[[str], bool] | None
    ) -> Sliced[None]:
        """Match the expressions with the topics at the time when the work begins."""
        # Only a coordinator of groups has this effect.
        slices = resolving(effect, cast("CoordinatorOfGroups", self.coordinator).image, may_describe)
        while not self.closed:
            try:
                next(slices)
            except StopIteration as end:
                self.process(end.value)
                return
            yield

    # -- time -------------------------------------------------------------------------------------------

    def run_due(self) -> None:
        """Run every timer that is due by now, then set the next one. The clock may have been moved."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._armed_ms = None
        self._run_due(itertools.repeat(None))

    def _run_due(self, turn: Iterator[None]) -> None:
        now_ms, next_deadline = self._now_ms(), self.coordinator.next_deadline
        for _ in turn:
            if self.closed or (due := next_deadline()) is None or due > now_ms:
                break
            self.process(DeadlineReached(due))
        self._arm()

    def _arm(self) -> None:
        """Set the timer. A timer that fires too early only checks again."""
        due = self.coordinator.next_deadline()
        if due is None or self.closed:
            return
        if self._armed_ms is None or due < self._armed_ms:
            if self._timer is not None:
                self._timer.cancel()
            self._armed_ms = due
            self._timer = self.clock.call_at(due, partial(self._fired, due))

    def _fired(self, due: int) -> None:
        if due == self._armed_ms and not self.closed:
            self._timer = self._armed_ms = None
            self._run_due(self._hooks.turn())

    # -- the end ----------------------------------------------------------------------------------------

    def close(self: CoordinatorHost[G]) -> None:
        """Close the coordinator: no timer runs any more, and parked requests are refused."""
        self._hooks.closing()
        responses = self.coordinator.unload()
        self.abandon()
        if responses:
            self._deliver(responses, NOTHING)

    def abandon(self) -> None:
        """Stop without any response, like a process that dies."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
