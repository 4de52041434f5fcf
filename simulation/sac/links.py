"""Links between nodes. Messages keep their order; in a split they wait until it is noticed, and are then
lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fencepost.simulation.kernel.loop import VirtualLoop
from fencepost.simulation.kernel.rng import Draws, Samples


class Link:
    """The link of two nodes, in both directions. `is_cut`: nothing passes; `is_lost`: both sides know."""

    def __init__(self, loop: VirtualLoop, latency: Samples, detection: Samples, on_change: Changed) -> None:
        self.is_cut = False
        self.is_lost = False
        self._loop = loop
        self._latency = latency
        self._detection = detection
        self._on_change = on_change
        self._arrives: dict[str, int] = {}
        self._held: list[tuple[str, Callable[[Any], Any], Any, Callable[[], Any]]] = []
        self._cut_number = 0

    def send(
        self, source: str, action: Callable[[Any], Any], argument: object, lost: Callable[[], Any]
    ) -> None:
        """Run the action at the other end; `lost` runs if the message never arrives."""
        if self.is_lost:
            lost()
        elif self.is_cut:
            self._held.append((source, action, argument, lost))
        else:
            at = max(self._loop.now_us + self._latency.draw(), self._arrives.get(source, 0))
            self._arrives[source] = at
            self._loop.schedule(at, action, argument)

    def cut(self, *, at_once: bool = False) -> None:
        """Let nothing pass. Both sides notice after a while, or at once if a node's process died."""
        if not self.is_cut:
            self.is_cut = True
            self._cut_number += 1
            delay = 0 if at_once else self._detection.draw()
            self._loop.schedule(self._loop.now_us + delay, self._notice, self._cut_number)
        elif at_once:
            self._notice(self._cut_number)

    def _notice(self, number: int) -> None:
        if number != self._cut_number or not self.is_cut or self.is_lost:
            return
        self.is_lost = True
        held, self._held = self._held, []
        for *_, lost in held:
            lost()
        self._on_change(self)

    def mend(self) -> None:
        """Let messages pass again; those that were held arrive now, if neither side noticed the cut."""
        if not self.is_cut:
            return
        self.is_cut = False
        if self.is_lost:
            self.is_lost = False
            self._on_change(self)
        held, self._held = self._held, []
        for source, action, argument, lost in held:
            self.send(source, action, argument, lost)


Changed = Callable[[Link], Any]


class Links:
    """All links of a cluster. A node reaches itself in no time, in order."""

    def __init__(self, loop: VirtualLoop, draws: Draws, latency: Any, detection: Any) -> None:
        self._loop = loop
        self._draws = draws
        self._latency, self._detection = latency, detection
        self._links: dict[tuple[str, str], Link] = {}
        self.on_change: Callable[[str, str, Link], Any] = lambda *_: None
        """Called with two nodes when they lose each other, or find each other again."""

    def between(self, one: str, other: str) -> Link:
        """Return the link of two different nodes."""
        first, second = sorted((one, other))
        link = self._links.get((first, second))
        if link is None:
            name = f"{first}/{second}"
            link = self._links[first, second] = Link(
                self._loop,
                self._draws.samples(f"node-link/{name}", self._latency),
                self._draws.samples(f"node-detection/{name}", self._detection),
                lambda changed: self.on_change(first, second, changed),
            )
        return link

    def send(
        self,
        source: str,
        target: str,
        action: Callable[[Any], Any],
        argument: object,
        lost: Callable[[], Any] = lambda: None,
    ) -> None:
        """Let the action run on the target node, unless the message is lost."""
        if source == target:
            self._loop.schedule(self._loop.now_us, action, argument)
        else:
            self.between(source, target).send(source, action, argument, lost)

    def reach(self, one: str, other: str) -> bool:
        """Return true if messages pass now."""
        return one == other or not self.between(one, other).is_cut

    def know(self, one: str, other: str) -> bool:
        """Return true if two nodes take each other for reachable."""
        return one == other or not self.between(one, other).is_lost
