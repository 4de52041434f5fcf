"""The note in a folder of `fencepost plan --out` that identifies its plan, for later analyses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.reading import UnreadableFile, read_file
from fencepost.simulation.pipeline.whole_files import write_whole

if TYPE_CHECKING:
    from fencepost.simulation.pipeline.question import Question

PLAN_NOTE: Final = "plan.json"


class PlanNote(msgspec.Struct, frozen=True, kw_only=True):
    """The questions of a plan by name, and when their event begins."""

    begin_us: int
    questions: dict[str, Question]


def write_plan_note(folder: Path, note: PlanNote) -> None:
    """Write the note of a plan into its folder."""
    text = msgspec.json.format(msgspec.json.encode(note, enc_hook=str)).decode()
    write_whole(folder / PLAN_NOTE, text + "\n")


def begin_of_plan(folder: Path) -> int | None:
    """Return the begin of a plan's event, in microseconds of its runs; None if this is not a plan's folder.

    :raises FencepostError: if its note is damaged.
    """
    path = folder / PLAN_NOTE
    if not path.is_file():
        return None
    try:
        return msgspec.json.decode(read_file(path), type=_Begin).begin_us
    except (UnreadableFile, msgspec.DecodeError) as error:
        raise FencepostError(f"{path}: not a note of `fencepost plan`: {error}") from None


class _Begin(msgspec.Struct):
    begin_us: int
