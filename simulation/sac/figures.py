"""The figures of one run: time without an active consumer, and the windows in which there were two.

A consumer that steps down reads nothing, and one whose connection has ended receives nothing. Time without an
active consumer counts from there. In the trace, clients go on until they notice, so analyses find less of it.

The windows are RabbitMQ's own, named by what opened them:

========== =====================================================================================
forgotten  a client behind a lost node is taken for gone after the disconnected timeout, and is not
abandoned  a node is lost while its consumer steps down: the next one starts without its answer
demoted    an activation moves the group on although the active consumer got no message
early      an activation meant for an earlier step-down counts before the present one is answered
returned   a forgotten consumer is back, and another was made active before all had stepped down
twice lost a forgotten consumer was lost again before it had reported, and comes back as active
removed    a node was taken out of the cluster, and its client has not noticed
========== =====================================================================================
"""

from __future__ import annotations

from collections import Counter


class Figures:
    """Gathers measurements of one run."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._seconds: Counter[str] = Counter()
        self._longest: dict[str, float] = {}

    def add(self, name: str, us: int) -> None:
        """Add a stretch of time under that name."""
        seconds = us / 1_000_000
        self.counts[name] += 1
        self._seconds[name] += seconds  # type: ignore[assignment]
        self._longest[name] = max(seconds, self._longest.get(name, 0.0))

    def document(self) -> dict[str, float]:
        """Return the count, the total and the longest of each kind, under names with underscores."""
        made: dict[str, float] = {}
        for name in sorted(self.counts):
            key = name.replace(" ", "_")
            if name in self._seconds:
                made[f"{key}_count"] = self.counts[name]
                made[f"{key}_seconds"] = round(self._seconds[name], 6)
                made[f"{key}_longest_seconds"] = round(self._longest[name], 6)
            else:
                made[key] = self.counts[name]
        return made
