"""What came of a run on real brokers: what `simulate` tells of one, and what became of the records."""

from __future__ import annotations

import msgspec

from fencepost.simulation.lab.chaos.messages import ClientName
from fencepost.simulation.run import RunResult


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of disturbance that the plan has and this run could not play, and how often."""

    kind: str
    times: int
    reason: str


class ChaosResult(RunResult, frozen=True, kw_only=True):
    """What came of it. The digest is that of the trace's rows; no two real runs have the same.

    `virtual_seconds` is how long the run was, from the first start of a member to the end of the quiet phase,
    `wall_seconds` the same with what came before and after: topics, draining, closing. `events` is what was
    heard of members, brokers and faults; `heartbeats` those that a member got an answer to.
    """

    records_sent: int
    """Those that the cluster acknowledged, of topics that there still are."""
    records_lost: int
    """Those of them that no member processed while it owned their partition."""
    records_duplicated: int
    """How often a record was processed once more."""
    client: ClientName
    cluster: str
    """`jvm`, `docker`, or the address of a cluster that was there before."""
    nodes: int
    speed: float
    """How many times as fast as written the scenario was played."""
    skipped: list[Skipped]
