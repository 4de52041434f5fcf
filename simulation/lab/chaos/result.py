"""What came of a run on real brokers: what `simulate` tells of one, and what became of the records."""

from __future__ import annotations

import msgspec

from fencepost.simulation.kernel.observers import Violation
from fencepost.simulation.lab.chaos.messages import ClientName


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of disturbance that the plan has and this run could not play, and how often."""

    kind: str
    times: int
    reason: str


class ChaosResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. The digest is that of the trace's rows; no two real runs have the same."""

    scenario: str
    seed: int
    members: int
    partitions: int
    virtual_seconds: float
    """How long the run was, from the first start of a member to the end of the quiet phase."""
    wall_seconds: float
    """The same with what came before and after: topics, draining, closing."""
    events: int
    """What was heard of members, brokers and faults."""
    heartbeats: int
    """Those that a member got an answer to."""
    rebalances: int
    converged: bool
    """Whether all members that run were STABLE at one epoch when the run ended."""
    violations: list[Violation]
    digest: str
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
    figures: dict[str, float] = {}
    """What else was measured; of Streams applications, see docs/streams.md."""
