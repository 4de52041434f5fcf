"""What a campaign keeps of runs that failed: each kind of failure once, made small, with a test of it."""

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
from fencepost.simulation.pipeline.output import CampaignDirectory, write_whole
from fencepost.simulation.pipeline.progress import Progress
from fencepost.simulation.pipeline.tasks import CampaignCell

FAILURES: Final = "failures"
"""The folder of a campaign's directory."""
MOST: Final = 5
"""How many failures are kept: the first of each invariant in each cell of the grid."""
_TRIES = 200
_NAME_BYTES = 200
"""What file systems leave of their 255 beside the ending, and the name that a file has before it is whole."""
_RAISED = re.compile(r"^(?:[\w.]+\.)?(\w+)(?::.*)?$", re.MULTILINE)


class KeptFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Files of one failure, and what `shrink` left of it."""

    run_id: str
    invariant: str
    failure: str
    """The run as it was: for `fencepost replay`, and `fencepost shrink` with more tries."""
    small: str = ""
    """The small one; empty if the run did not fail again."""
    test: str = ""
    disturbances: int
    """Of the small one, if there is one."""


def keep_failures(
    directory: CampaignDirectory, cells: Sequence[CampaignCell], progress: Progress
) -> list[KeptFailure]:
    """Write the failures of these cells' runs, and make them small.

    :raises FencepostError: if a scenario is not what it was when the campaign ran.
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
    """A run's name begins with its scenario's, which may be any text; what tells runs apart is at its end."""
    return re.sub(r"^\.+|[/\0]", "_", run_id).encode()[-_NAME_BYTES:].decode(errors="ignore")


def _first_of_each(
    runs: Sequence[Mapping[str, Any]], cells: Mapping[str, CampaignCell]
) -> Iterator[tuple[str, Failure]]:
    """The first run of each cell that failed in each way."""
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
    """From a traceback to the failure's name; None for a run that took too long: that is no bug to shrink."""
    if error is None or not error.startswith("Traceback"):
        return None
    names = _RAISED.findall(error.strip().rpartition("\n")[2])
    return f"{RAISED}{names[0]}" if names else None
