"""The failures that a campaign keeps: each kind of failure once, shrunk, with a test."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.failures.case import pytest_case, test_name
from fencepost.simulation.failures.failure import Failure, failure_of
from fencepost.simulation.failures.shrink import shrink
from fencepost.simulation.kernel.observers import RAISED
from fencepost.simulation.pipeline.output import CampaignDirectory
from fencepost.simulation.pipeline.progress import Progress
from fencepost.simulation.pipeline.tasks import CampaignCell
from fencepost.simulation.pipeline.whole_files import write_whole

FAILURES: Final = "failures"
"""The folder of a campaign's directory."""
MOST: Final = 5
"""The limit on kept failures: the first of each invariant in each cell of the grid."""
_TRIES = 200
_NAME_BYTES = 200
"""Length of a name that a file system's 255 bytes leave besides the ending and the temporary name of an
unfinished file."""
_RAISED = re.compile(r"^(?:[\w.]+\.)?(\w+)(?::.*)?$", re.MULTILINE)


class KeptFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The files of one failure, and the size of its shrunk version."""

    run_id: str
    invariant: str
    failure: str
    """The original run, for `fencepost replay`, or for `fencepost shrink` with more tries."""
    small: str = ""
    """The shrunk failure; empty if the run did not fail again."""
    test: str = ""
    disturbances: int
    """Number of disturbances of the shrunk failure, if there is one."""


def keep_failures(
    directory: CampaignDirectory, cells: Sequence[CampaignCell], progress: Progress
) -> list[KeptFailure]:
    """Write the failures of these cells' runs, and shrink them.

    :raises FencepostError: if a scenario has changed since the campaign ran.
    :raises EnvironmentLacks: if a file can't be written.
    """
    found = list(_first_of_each(directory.failed_runs(), {cell.prefix: cell for cell in cells}))[:MOST]
    if not found:
        return []
    (directory.root / FAILURES).mkdir(exist_ok=True)
    kept = []
    with progress.step("shrinking failures", _TRIES * len(found)) as advance:
        for run_id, failure in found:
            done = 0

            def tried(count: int) -> None:
                nonlocal done
                done += count
                advance(count)

            kept.append(_keep(directory, run_id, failure, tried))
            advance(_TRIES - done)
    return kept


def _keep(directory: CampaignDirectory, run_id: str, failure: Failure, tried: Any) -> KeptFailure:
    name = _file_name(run_id)
    whole = directory.root / FAILURES / f"{name}.json"
    write_whole(whole, failure.to_json() + "\n")
    kept = KeptFailure(
        run_id=run_id,
        invariant=failure.invariant,
        failure=str(whole),
        disturbances=len(failure.plan.entries),
    )
    try:
        shrunk = shrink(failure, tries=_TRIES, progress=tried)
    except FencepostError:
        return kept
    small = whole.with_name(f"{name}-small.json")
    test = whole.with_name(f"{test_name(shrunk.after)}.py")
    write_whole(small, shrunk.after.to_json() + "\n")
    write_whole(test, pytest_case(shrunk.after))
    return msgspec.structs.replace(
        kept, small=str(small), test=str(test), disturbances=len(shrunk.after.plan.entries)
    )


def _file_name(run_id: str) -> str:
    """Return a file name for a run. The run's name begins with its scenario's, which may be any text, and
    ends with what distinguishes it."""
    return re.sub(r"^\.+|[/\0]", "_", run_id).encode()[-_NAME_BYTES:].decode(errors="ignore")


def _first_of_each(
    runs: Sequence[Mapping[str, Any]], cells: Mapping[str, CampaignCell]
) -> Iterator[tuple[str, Failure]]:
    """Yield the first run of each cell that failed in each way."""
    seen = set()
    for row in runs:
        prefix = row["run_id"].rpartition("-")[0]
        invariant = row["invariant"] or _raised(row["error"])
        if invariant is None or prefix not in cells or (prefix, invariant) in seen:
            continue
        seen.add((prefix, invariant))
        cell = cells[prefix]
        yield (
            row["run_id"],
            failure_of(
                cell.source,
                row["seed"],
                invariant,
                overrides=cell.overrides,
                partitions=cell.partitions,
            ),
        )


def _raised(error: str | None) -> str | None:
    """Return the failure's name from a traceback; None for a run that took too long, which is no bug to
    shrink."""
    if error is None or not error.startswith("Traceback"):
        return None
    names = _RAISED.findall(error.strip().rpartition("\n")[2])
    return f"{RAISED}{names[0]}" if names else None
