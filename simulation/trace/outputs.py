"""Outputs of the rows of one run: a file, a topic, and memory for the run's page."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from fencepost.simulation.trace.rows import TraceSink
from fencepost.simulation.trace.schema import Row

if TYPE_CHECKING:
    from fencepost.simulation.trace.topic import TopicTrace, TraceTopic


class TraceOutputs:
    """Hands the rows of a run to writers, and keeps them if the run is to have a page."""

    def __init__(self, file: TraceSink | None, topic: TopicTrace | None, *, keep: bool) -> None:
        self.rows: list[Row] = []
        self._topic = topic
        self._writers: list[TraceSink] = [each for each in (file, topic) if each is not None]
        self._keep = keep

    @property
    def writer(self) -> TraceSink | None:
        """The receiver of the rows; None if no output is wanted."""
        return self if self._keep or self._writers else None

    def begin_now(self) -> None:
        """Begin the run now; its time is the clock's."""
        if self._topic is not None:
            self._topic.began_ms = time.time_ns() // 1_000_000

    def write(self, rows: Sequence[Row], /) -> None:
        """Take a batch."""
        if self._keep:
            self.rows.extend(rows)
        for writer in self._writers:
            writer.write(rows)


@contextmanager
def trace_outputs(
    run_id: str, trace: Path | None, place: TraceTopic | None, *, keep: bool
) -> Iterator[TraceOutputs]:
    """Open the outputs of a run's rows: a file, a topic, and with `keep` memory."""
    with ExitStack() as opened:
        file = topic = None
        if trace is not None:
            from fencepost.simulation.trace.parquet import whole_trace

            file = opened.enter_context(whole_trace(trace, run_id))
        if place is not None:
            from fencepost.simulation.trace.topic import TopicTrace

            # Several runs may write to a topic: the time tells a repeated run from the first.
            topic = opened.enter_context(TopicTrace(place, f"{run_id}@{datetime.now(UTC):%Y%m%dT%H%M%S.%f}"))
        yield TraceOutputs(file, topic, keep=keep)
