"""All that the judge of a run on real brokers gets: a value to be judged, which a file keeps for later."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from fencepost.coordinator.codec.compression import TooLong, gunzipped
from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.reading import read_file
from fencepost.simulation.kernel.observers import Observer, Violation
from fencepost.simulation.kernel.world import RunCounts
from fencepost.simulation.lab.chaos.events import Happening, RunEvents
from fencepost.simulation.lab.chaos.played import Arrival, PlayedCoordinator
from fencepost.simulation.lab.chaos.replayed import ReplayedRun
from fencepost.simulation.lab.chaos.replayed_application import ReplayedApplication
from fencepost.simulation.lab.chaos.result import ChaosResult
from fencepost.simulation.lab.chaos.trace_writer import RealTraceWriter
from fencepost.simulation.scenarios.scenario import Scenario
from fencepost.simulation.scenarios.streams import StreamsScenario
from fencepost.simulation.trace.rows import TraceRows, TraceSink
from fencepost.simulation.trace.schema import RowKind

WORLD: Final = "real"
MAX_BYTES: Final = 1 << 30
"""Maximum size of a file of a run, before and after decompression (1 GiB)."""
_FORMAT: Final = "fencepost-chaos-1"
_SHOWN: Final = 5
"""Maximum number of lost records that are reported."""
_UNSEEN: Final = frozenset({"commit-before-release"})
"""Invariants that can't be judged for members that do not report their requests."""
_OF_COORDINATOR: Final = frozenset(
    {"one-claimant", "progress", "quiet", "gone-members", "reply-equals-state"}
)
"""Invariants that can't be judged for a group whose coordinator shows no log."""


S = TypeVar("S", Scenario, StreamsScenario)
AnyRun: TypeAlias = "KeptRun[Scenario] | KeptRun[StreamsScenario]"


class LostRecord(NamedTuple):
    """A record that was acknowledged and that no member processed."""

    number: int
    partition: TopicPartition
    offset: int


class KeptRun(msgspec.Struct, Generic[S], kw_only=True):
    """All that a judge gets of a run. `scenario` has the times that were played."""

    scenario: S
    seed: int
    client: str
    config: GroupCoordinatorConfig
    members: list[tuple[str, str | None]]
    """Hosts, and their instance ids."""
    brokers: list[str]
    arrivals: list[Arrival] | None = None
    """The log of the group's coordinator; None if the cluster shows none, or if it is not judged by it."""
    leader_epoch: int = -1
    """The leader epoch of the log when the run began."""
    happenings: list[tuple[int, str, Happening]]
    lost: list[LostRecord] = []
    ended_us: int
    shutdown_us: int = 0
    """Maximum time until a request to shut an application down reaches every client, in microseconds."""
    request_timeout_us: int | None = None
    """Time for which clients of an application on the classic protocol wait for a response."""


class RunJudgement(NamedTuple):
    """The findings of the judge: the fields of a result that it decides."""

    converged: bool
    violations: list[Violation]
    heartbeats: int
    rebalances: int
    figures: dict[str, float]
    digest: str


class _File(msgspec.Struct, kw_only=True):
    format: str
    protocol: str
    run: msgspec.Raw
    result: ChaosResult
    """The result at the time of the run."""


def keep(run: AnyRun, result: ChaosResult, path: Path) -> None:
    """Write a run and its result to a file."""
    encode = msgspec.msgpack.Encoder(
        enc_hook=lambda value: {name: getattr(value, name) for name in value.__slots__}
    ).encode
    file = _File(format=_FORMAT, protocol=run.scenario.protocol, run=msgspec.Raw(encode(run)), result=result)
    path.write_bytes(gzip.compress(encode(file), mtime=0))


def kept(path: Path) -> tuple[AnyRun, ChaosResult]:
    """Return a run that was kept, and its result at the time.

    :raises FencepostError: if the file can't be read, or is no such file.
    """
    try:
        data = gunzipped(read_file(path, MAX_BYTES), MAX_BYTES)
        file = msgspec.msgpack.decode(data, type=_File)
        if file.format != _FORMAT:
            raise FencepostError(f"{path} has the format {file.format!r}: expected {_FORMAT!r}")
        kind: Any = KeptRun[StreamsScenario] if file.protocol == "streams" else KeptRun[Scenario]
        run: AnyRun = msgspec.msgpack.decode(
            file.run, type=kind, dec_hook=lambda kind, fields: kind(**fields)
        )
    except TooLong:
        raise FencepostError(f"{path} is longer than {MAX_BYTES} bytes when it is decompressed") from None
    except (ValueError, zlib.error, EOFError, RecursionError) as error:
        raise FencepostError(
            f"{path} is not a run that `fencepost chaos --keep` of this version wrote: {error}"
        ) from error
    return run, file.result


def judge(run: AnyRun, observers: Iterable[Observer] = (), trace: TraceSink | None = None) -> RunJudgement:
    """Replay all events of a run in one order, notify observers, and judge it.

    The caller closes the trace. Observers of a Streams application get round trips only.
    """
    rows = TraceRows(world=WORLD, group=run.scenario.group.id, sink=trace)
    rows.add(
        0,
        "",
        RowKind.RUN_START.value,
        detail=f"{run.scenario.name} {run.seed} {run.scenario.group.members}",
    )
    happenings = RunEvents(run.happenings)
    if isinstance(run.scenario, StreamsScenario):
        application = ReplayedApplication(
            [name for name, _ in run.members],
            rows,
            run.shutdown_us,
            request_timeout_us=run.request_timeout_us,
            observers=observers,
        )
        application.tell_all(happenings, run.ended_us)
        replayed: ReplayedApplication | ReplayedRun = application
        counts = RunCounts(application.heartbeats, application.rebalances, application.application.figures)
    else:
        writer = RealTraceWriter(rows, run.scenario.group.members)
        replayed = _world(run, run.scenario, [writer, *_judges(run), *observers], rows)
        replayed.tell_all(happenings, run.ended_us)
        if run.arrivals is None and not replayed.settled:
            replayed.report("progress", f"members stand at {replayed.standing}")
        counts = RunCounts(writer.heartbeats, writer.rebalances)
    invariant = "streams-at-least-once" if run.scenario.protocol == "streams" else "at-least-once"
    for number, partition, offset in run.lost[:_SHOWN]:
        replayed.report(
            invariant,
            f"record {number}, {partition.topic}-{partition.partition} at {offset}, was acknowledged and no"
            " member processed it",
        )
    rows.add(run.ended_us, "", RowKind.RUN_END.value)
    figures = dict(counts.figures)
    return RunJudgement(
        replayed.settled, replayed.violations, counts.heartbeats, counts.rebalances, figures, rows.digest()
    )


def _world(run: AnyRun, scenario: Scenario, observers: Iterable[Observer], rows: TraceRows) -> ReplayedRun:
    played = None
    if run.arrivals is not None:
        played = PlayedCoordinator(scenario.group.id, config=run.config, leader_epoch=run.leader_epoch)
    return ReplayedRun(
        scenario,
        run.config,
        played,
        run.arrivals or (),
        client=run.client,
        members=run.members,
        brokers=run.brokers,
        observers=observers,
        sequence=lambda: rows.seq,
    )


def _judges(run: AnyRun) -> list[Observer]:
    """Return the judges that need no more than what is visible."""
    from fencepost.simulation.judge import real_judges

    judges = real_judges(run.scenario.protocols)
    for judge in judges:
        if run.client != "fencepost":
            judge.left_out |= _UNSEEN
        if run.arrivals is None:
            judge.left_out |= _OF_COORDINATOR
    return [*judges]
