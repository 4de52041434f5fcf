"""The result of a run on real brokers: that of `simulate`, and what happened to the records."""

from __future__ import annotations

import msgspec

from fencepost.simulation.lab.chaos.messages import ClientName
from fencepost.simulation.run import RunResult


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of disturbance in the plan that this run could not play, and how often it was planned."""

    kind: str
    times: int
    reason: str


class ChaosResult(RunResult, frozen=True, kw_only=True):
    """The result. The digest is that of the trace's rows; no two real runs have the same.

    `virtual_seconds` is the length of the run, from the first start of a member to the end of the quiet
    phase. `wall_seconds` includes what came before and after: topics, draining, closing. `events` counts
    received events of members, brokers and faults; `heartbeats` those that a member got a response to.
    """

    records_sent: int
    """Records that the cluster acknowledged, of topics that still exist."""
    records_lost: int
    """Those of them that no member processed while it owned their partition."""
    records_duplicated: int
    """Number of times that a record was processed again."""
    client: ClientName
    cluster: str
    """`jvm`, `docker`, or the address of a cluster that was there before."""
    nodes: int
    speed: float
    """Factor by which the scenario was played faster than it is written."""
    skipped: list[Skipped]
