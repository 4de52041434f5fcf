"""The base of every world: hosts on one clock, observers that are notified of what happens, and their
findings."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fencepost.simulation.kernel.observers import Observer, Violation, WorldObserver, hook_lists
from fencepost.simulation.kernel.rng import Draws, Samples

if TYPE_CHECKING:
    from fencepost.simulation.kernel.loop import VirtualLoop
    from fencepost.simulation.scenarios.values import Span


class HasTime(Protocol):
    """Something that knows the time of a run."""

    @property
    def now_us(self) -> int:
        """Microseconds since the start of the run."""


class Observed:
    """A world with observers. `sequence` returns the number of the last trace row."""

    hooks: dict[str, tuple[Callable[..., Any], ...]]
    """The observers' methods by hook."""

    def __init__(self, time: HasTime, sequence: Callable[[], int]) -> None:
        self._time = time
        self._sequence = sequence
        self.violations: list[Violation] = []
        self.faults_over = False
        """True if the last phase has begun, in which nothing disturbs the world."""

    def attach(self, observers: Iterable[WorldObserver], kind: type[WorldObserver] = Observer) -> None:
        """Attach these observers; the world calls the hooks of that kind."""
        watching = tuple(observers)
        for observer in watching:
            observer.attach(self, self.report)
        self.hooks = hook_lists(watching, kind)

    @property
    def now_us(self) -> int:
        """Microseconds since the start of the run."""
        return self._time.now_us

    def tell(self, hook: str, *arguments: object) -> None:
        """Notify observers by this hook."""
        for method in self.hooks[hook]:
            method(*arguments, self._time.now_us)

    def report(self, invariant: str, message: str, /, rule: str = "") -> None:
        """Record a judge's finding."""
        violation = Violation(
            invariant=invariant, seq=self._sequence(), t_us=self._time.now_us, message=message, rule=rule
        )
        self.violations.append(violation)
        for method in self.hooks["on_violation"]:
            method(violation)


class AppliedTimes(Protocol):
    """The times that an application takes."""

    @property
    def callback(self) -> Span:
        """Time that a rebalance callback takes."""

    @property
    def processing(self) -> Span:
        """Time that processing one record takes."""


class World(Observed, abc.ABC):
    """Everything of one simulated run. Its draws are those of the seed."""

    def __init__(
        self, application: AppliedTimes, loop: VirtualLoop, seed: int, sequence: Callable[[], int]
    ) -> None:
        super().__init__(loop, sequence)
        self.loop = loop
        self.draws = Draws(seed)
        self.timer_delays: Samples | None = None
        """The delays of members' timers; None if they are on time."""
        self.callback_times = self.draws.samples("callbacks", application.callback.quantiles)
        self.processing_times = self.draws.samples("processing", application.processing.quantiles)

    def delay_timers(self, late: Span) -> None:
        """Delay timers of members from now on."""
        if late.longest_us:
            self.timer_delays = self.draws.samples("timers", late.quantiles)

    @abc.abstractmethod
    def begin(self) -> None:
        """Put a coordinator in charge, and let the processes start."""

    @property
    @abc.abstractmethod
    def settled(self) -> bool:
        """True if everything is in the state that it should reach when nothing disturbs it."""

    @abc.abstractmethod
    def vanish(self) -> None:
        """Kill all processes; work that they left on the loop ends at this moment."""

    def end(self) -> bool:
        """End the run: observers report their last findings, then all processes end.

        Return whether everything had settled.
        """
        self.tell("on_end")
        settled = self.settled
        self.vanish()
        return settled


def host_names(kind: str, count: int) -> list[str]:
    """Return the names of `count` hosts, such as `member-01` to `member-12`."""
    width = len(str(count))
    return [f"{kind}-{number:0{width}}" for number in range(1, count + 1)]


class RunCounts(NamedTuple):
    """The counts that were measured in a run."""

    heartbeats: int
    """Heartbeats that a coordinator answered; for single active consumers, the commands that it answered."""
    rebalances: int
    """Rebalances that ended; for single active consumers, the number of times that one was made active."""
    figures: Mapping[str, float] = MappingProxyType({})


class Begins(Protocol):
    """Something that is put on the loop when a run begins."""

    def begin(self) -> None:
        """Put it on the loop."""


class PreparedRun(NamedTuple):
    """A world that is ready to run, its nemesis, and its measurements."""

    world: World
    nemesis: Begins
    counts: Callable[[], RunCounts]

    def begin(self) -> None:
        """Start the world, and then its nemesis."""
        self.world.begin()
        self.nemesis.begin()
