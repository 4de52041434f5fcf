"""`fencepost analyze --kafka`: follows a topic, and shows a table that is kept up to date, or lines."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.text import Text

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.cli.logs import configure_logs
from fencepost.simulation.cli.output import print_result
from fencepost.simulation.cli.terminal import Terminal
from fencepost.simulation.interrupts import ending_signals, told_at_once
from fencepost.simulation.pipeline.progress import Progress, progress_for
from fencepost.simulation.report.model import NONE

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fencepost.simulation.live.follow import Followed, Snapshot
    from fencepost.simulation.live.windows import Window
    from fencepost.simulation.pipeline.progress import Advance

OUT: Final = Path("out/live")
WINDOW_S: Final = 10.0
SHOWN: Final = 12
"""Windows that the terminal shows at once; JSON has them all."""

_COUNTS: Final = ("heartbeats", "epochs", "settled", "removed", "commits", "violations")
_HEADINGS: Final = ("from", "group", *_COUNTS)
_STOPPING: Final = "stopping: the tables come next; a second signal ends at once, the same --out continues"


@Parameter(name="*")
@dataclasses.dataclass(frozen=True)
class FollowOptions:
    """Options of `analyze --kafka`."""

    kafka: str | None = None
    """HOST:PORT of a Kafka broker: follow --topic instead of reading files."""
    topic: str | None = None
    """With --kafka: the topic with a trace, or __consumer_offsets, Kafka's own log."""
    kafka_config: Path | None = None
    """With --kafka: a file of Kafka's client settings, for brokers with TLS or a login."""
    out: Path | None = None
    """With --kafka: the folder for rows; a restart continues from it. Default: out/live/TOPIC."""
    until_idle: Annotated[float | None, Parameter(validator=Number(gt=0))] = None
    """With --kafka: end after this many seconds without a record."""
    available_now: Annotated[bool, Parameter(show_default=False)] = False
    """With --kafka: end after reading everything that is there now."""
    window: Annotated[
        float | None,
        Parameter(
            validator=Number(gte=0.1),
            help=f"With --kafka: seconds in each window of counts. Default: {WINDOW_S:g}.",
        ),
    ] = None


def follow_topic(options: FollowOptions, *, master: str, report: Path | None, json: bool) -> int:
    """Run `analyze --kafka`.

    :raises FencepostError: if there is no topic, or the options contradict each other.
    """
    from fencepost.simulation.brokers.client_config import client_security
    from fencepost.simulation.live.follow import Until, follow

    kafka, topic = options.kafka, options.topic
    assert kafka is not None
    if topic is None:
        raise FencepostError("--kafka: needs --topic NAME")
    if options.available_now and options.until_idle is not None:
        raise FencepostError("--until-idle: has no effect with --available-now, which ends by itself")
    security = client_security(options.kafka_config, "--kafka-config")
    folder = OUT / topic if options.out is None else options.out
    with contextlib.suppress(FileNotFoundError):
        folder.stat()  # a path that the system refuses is refused before brokers are asked
    configure_logs("info")
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    with _stop_requested() as stop, told_at_once(_STOPPING), contextlib.ExitStack() as display:
        followed = follow(
            kafka,
            topic,
            folder,
            security=security,
            master=master,
            window_s=options.window or WINDOW_S,
            until=Until(options.available_now, options.until_idle),
            report=report,
            stop=stop,
            tell=display.enter_context(_display(json)),
            progress=_Afterwards(progress_for(json=json), display),
        )
    print_result(followed, _print, json=json)
    return 0


class _Afterwards(Progress):
    """Progress of the work after following. It removes the display first, as both draw on one terminal."""

    def __init__(self, progress: Progress, display: contextlib.ExitStack) -> None:
        self._progress = progress
        self._display = display

    def say(self, line: str) -> None:
        """See `Progress.say`."""
        self._progress.say(line)

    def step(self, name: str, total: int) -> contextlib.AbstractContextManager[Advance]:
        """See `Progress.step`."""
        self._display.close()
        return self._progress.step(name, total)


@contextlib.contextmanager
def _stop_requested() -> Iterator[threading.Event]:
    """Yield an event that the first signal to end sets, to end following; another one ends everything."""
    stop = threading.Event()
    before: dict[signal.Signals, object] = {}

    def ask(number: int, frame: object) -> None:
        stop.set()
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # as `signal` returned it

    for number in ending_signals():
        before[number] = signal.signal(number, ask)
    try:
        yield stop
    finally:
        restore()


@contextlib.contextmanager
def _display(json: bool) -> Iterator[Callable[[Snapshot], None]]:
    """Show a table on a terminal until the block ends; elsewhere print a line for each window that
    is over."""
    out = Terminal()
    if json:
        yield lambda snapshot: None
        return
    if not out.is_terminal or os.environ.get("TERM") == "dumb":
        lines = WindowLines(out)
        yield lines.tell
        lines.end()
        return
    from rich.live import Live

    with Live(console=out, transient=True, auto_refresh=False) as live:
        yield lambda snapshot: live.update(table_of(snapshot), refresh=True)


class WindowLines:
    """Prints each window once: when a newer one of its group is there, or at the end."""

    def __init__(self, out: Terminal) -> None:
        self._out = out
        self._reported: set[tuple[str, str]] = set()
        self._last: Sequence[Window] = ()

    def tell(self, snapshot: Snapshot) -> None:
        """Print the windows that are over."""
        self._last = snapshot.windows
        newest = {window.group: window.start for window in snapshot.windows}
        self._say(window for window in snapshot.windows if window.start < newest[window.group])

    def end(self) -> None:
        """Print the remaining windows."""
        self._say(iter(self._last))

    def _say(self, windows: Iterator[Window]) -> None:
        for window in windows:
            if (window.start, window.group) in self._reported:
                continue
            self._reported.add((window.start, window.group))
            counts = (f"{getattr(window, name):,} {name}" for name in _COUNTS if getattr(window, name))
            self._out.say(f"{_clock(window.start)} {window.group or '-'}: {', '.join(counts) or 'nothing'}")


def table_of(snapshot: Snapshot) -> RenderableType:
    """Return the state of a followed topic as a table for a terminal."""
    from rich.console import Group
    from rich.table import Table

    windows = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in _HEADINGS:
        windows.add_column(heading, justify="left" if heading in ("from", "group") else "right")
    for window in snapshot.windows[-SHOWN:]:
        cells = [_count(getattr(window, name)) for name in _COUNTS]
        style = "red" if window.violations else ""
        windows.add_row(_clock(window.start), window.group, *cells, style=style)
    parts: list[RenderableType] = [Text(_summary(snapshot.rows, snapshot.skipped), "bold"), windows]
    if said := _headlines(snapshot):
        parts.append(Text("\n".join(said)))
    parts.append(Text("Ctrl-C ends it, with all tables", "dim"))
    return Group(*parts)


def _count(number: int | None) -> str:
    return NONE if number is None else f"{number:,}" if number else "·"


def _summary(rows: int, skipped: Mapping[str, int]) -> str:
    reasons = [f"{number:,} skipped ({reason})" for reason, number in skipped.items()]
    return ", ".join([f"{rows:,} rows", *reasons])


def _headlines(snapshot: Snapshot) -> list[str]:
    """Return a line for each kind of finding that has rows."""
    from fencepost.simulation.live.follow import HEADLINES

    tables = {name: snapshot.tables.get(name, []) for name in HEADLINES}
    said = [
        f"{row['scenario']}: {row['count']:,} rebalances, {_lengths(row, '')}"
        for row in tables["rebalances"]
        if row["count"]
    ]
    said += [
        f"{row['scenario']}: {row['count']:,} partitions changed hands, {_lengths(row, ' without an owner')}"
        for row in tables["downtime"]
        if row["count"] and row["cause"] == "all"
    ]
    said += [
        f"{row['scenario']}: {row['count']:,} times two owners"
        for row in tables["two_owners"]
        if row["count"] and row["sac_window"] is None
    ]
    said += [
        f"{row['scenario']}: {row['count']:,} of {row['invariant']} violated" for row in tables["violations"]
    ]
    return said[:SHOWN]


def _lengths(row: Mapping[str, Any], what: str) -> str:
    """Return the median and the longest time of a row, or that the log does not tell them."""
    if row["median"] is None:
        return "times not known from this log"
    return f"median {row['median']:.2f} s{what}, longest {row['max']:.2f} s"


def _clock(start: str) -> str:
    """Return the time of day of an ISO time."""
    return start[11:19]


def _print(followed: Followed) -> None:
    from fencepost.simulation.cli.analyze import print_tables

    out = Terminal()
    out.say()
    print_tables(out, followed.tables)
    out.say(f"{followed.topic} at {followed.kafka}: {_summary(followed.rows, followed.skipped)}")
    if followed.late:
        out.say(f"{followed.late:,} rows came too late for their window; they are in the tables")
    out.say(f"Rows:   {followed.out}")
    if followed.report is not None:
        out.say(f"Report: {followed.report}")
