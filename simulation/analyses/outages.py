"""The cost to an application of the times without an owner: lost capacity, and records that wait.

The lag is computed from these times alone, not from the reads of the simulated applications. Records are
written at an even rate to all partitions. The owner of a partition reads a multiple of that rate until no
record waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Times: TypeAlias = NDArray[np.int64]
    Floats: TypeAlias = NDArray[np.float64]

_NOTHING: Final = 1e-6
"""Backlog of a partition that counts as empty, in seconds of its records: a rounding error."""


class Traffic(msgspec.Struct, frozen=True):
    """The rate at which records are written, and how fast consumers can read."""

    records_per_second: float
    """Written to all partitions together, evenly."""
    headroom: float
    """Read rate of the consumers as a multiple of the write rate; more than 1, or a lag would never end."""


class OutageCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of an event in one run."""

    event_s: float
    """Time from the start of the event until its last rebalance is over and its last partition has an
    owner."""
    down_s: float
    """Time without an owner, added up over all partitions."""
    capacity_lost: float
    """That time as a share of the time of all partitions in the event, 0 to 1."""
    most_down: int
    """Largest number of partitions without an owner at the same time."""
    lag_peak: float
    """Largest number of records that waited in all partitions together."""
    lag_gone_s: float
    """Time from that peak until no record waited."""


def outage_cost(
    down_us: Times,
    up_us: Times,
    partition: Times,
    *,
    begin_us: int,
    end_us: int,
    partitions: int,
    traffic: Traffic,
) -> OutageCost:
    """Return the cost of an event from the times at which partitions had no owner.

    Each stretch is given by its begin, its end, and the number of its partition.
    """
    import numpy as np

    down_s = float(np.sum(up_us - down_us)) / 1e6
    event_s = (max(end_us, int(up_us.max(initial=begin_us))) - begin_us) / 1e6
    times, values = _backlog(down_us, up_us, partition, traffic.headroom)
    peak = int(np.argmax(values)) if len(values) else 0
    gone_s = 0.0
    if len(values) and values[peak] > _NOTHING:
        after = np.flatnonzero(values[peak:] <= _NOTHING)
        gone_s = float(times[peak + int(after[0])] - times[peak]) if len(after) else event_s
    return OutageCost(
        event_s=event_s,
        down_s=down_s,
        capacity_lost=down_s / (partitions * event_s) if event_s else 0.0,
        most_down=_most_at_once(down_us, up_us),
        lag_peak=float(values.max(initial=0.0)) * traffic.records_per_second / partitions,
        lag_gone_s=gone_s,
    )


def _most_at_once(down_us: Times, up_us: Times) -> int:
    """Return the largest number of stretches at the same time. A stretch that ends makes room for one that
    begins."""
    import numpy as np

    times = np.concatenate([up_us, down_us])
    change = np.concatenate([np.full(len(up_us), -1), np.full(len(down_us), 1)])
    order = np.lexsort((change, times))
    return int(np.cumsum(change[order]).max(initial=0))


def _backlog(down_us: Times, up_us: Times, partition: Times, headroom: float) -> tuple[Floats, Floats]:
    """Return moments in seconds, and the backlog at each of them, in seconds of one partition's records.

    Each partition's backlog grows by 1 a second without an owner, and shrinks by headroom - 1 with one.
    """
    import numpy as np

    order = np.lexsort((down_us, partition))
    down, up, owner = down_us[order] / 1e6, up_us[order] / 1e6, partition[order]
    first = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]]) if len(owner) else np.array([], int)
    lengths = np.diff(np.r_[first, len(owner)])
    drains = headroom - 1
    moments: list[Any] = []
    slopes: list[Any] = []
    waits, until = np.zeros(len(first)), down[first] if len(first) else np.zeros(0)
    for number in range(int(lengths.max(initial=0))):  # the next stretch of every partition that has one
        more = lengths > number
        at = first[more] + number
        begins, ends = down[at], up[at]
        left = np.maximum(0.0, waits[more] - drains * (begins - until[more]))
        drained = until[more] + waits[more] / drains
        empty = (left <= 0) & (waits[more] > 0)
        moments += [drained[empty], begins, ends]
        slopes += [
            np.full(int(empty.sum()), drains),
            np.where(left > 0, headroom, 1.0),
            np.full(len(ends), -headroom),
        ]
        waits[more], until[more] = left + (ends - begins), ends
    if not moments:
        return np.zeros(0), np.zeros(0)
    moments.append(until + waits / drains)
    slopes.append(np.full(len(until), drains))
    times, changes = np.concatenate(moments), np.concatenate(slopes)
    order = np.argsort(times, kind="stable")
    times, changes = times[order], changes[order]
    slope = np.cumsum(changes)
    values = np.r_[0.0, np.cumsum(slope[:-1] * np.diff(times))]
    return times, values
