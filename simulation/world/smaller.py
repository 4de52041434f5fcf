"""Makes the kept failure of a test smaller, in a child process that loads the test from its file."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import NamedTuple

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.world.failure import WorldFailure, gone_text, read_world_failure
from fencepost.simulation.world.spread import SeedJob, Shrinking, spread
from fencepost.simulation.world.sweep import Sweep


class SmallerFailure(NamedTuple):
    """A kept failure, its small version, and the report on that one."""

    before: WorldFailure
    after: WorldFailure
    text: str
    is_whole: bool
    """True if no fault can be left out any more; False if the limit on runs was reached first."""


def make_smaller(path: Path, out: Path, tries: int) -> SmallerFailure:
    """Make a failure smaller with at most that many runs, and write it to `out`, with its timeline.

    :raises FencepostError: if the test is not found, or the failure does not occur again.
    """
    kept = read_world_failure(str(path))
    file = Path(kept.file)
    if not kept.file or not file.exists():
        raise FencepostError(
            f"{path}: is a failure of the test {kept.test} in {kept.file or 'an unknown file'}, which is not "
            "below this folder; run fencepost shrink in the folder in which the test has failed"
        )
    job = SeedJob(
        path=[str(Path.cwd()), *sys.path],
        module=kept.module,
        file=str(file.resolve()),
        name=kept.name,
        seeds=[kept.seed],
        failure=str(path.resolve()),
        command=f"python -m pytest {shlex.quote(f'{kept.file}::{kept.name}')}",
        shrinks=Shrinking(out=str(out), tries=tries),
    )
    with Sweep(kept.test, 1) as sweep:
        (answer,) = spread(job, 1, sweep)
    if answer.problem:
        raise FencepostError(answer.problem)
    if answer.failed_seed is None:
        raise FencepostError(gone_text(str(path), kept))
    if not out.exists():  # the program is not repeatable
        raise FencepostError(answer.text)
    return SmallerFailure(kept, read_world_failure(str(out)), answer.text, answer.is_whole)
