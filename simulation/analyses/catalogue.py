"""All analyses by name, in the order in which people read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fencepost.simulation.analyses import incidents, owning, rebalancing
from fencepost.simulation.analyses.comparison import COMPARISONS
from fencepost.simulation.analyses.declaration import Analysis, Declared

ANALYSES: Final[Mapping[str, Analysis]] = {
    each.name: each
    for each in (
        incidents.RUNS,
        rebalancing.REBALANCES,
        rebalancing.LONGEST_REBALANCES,
        rebalancing.HEARTBEATS,
        owning.DOWNTIME,
        owning.INITIAL_ASSIGNMENT,
        owning.OWNERS,
        owning.TWO_OWNERS,
        owning.MOVED_PARTITIONS,
        owning.RECOVERIES,
        owning.SAC_GAPS,
        rebalancing.RESIDENCY,
        rebalancing.TRANSITIONS,
        incidents.ESCALATIONS,
        incidents.FENCINGS,
        incidents.COMMITS_REFUSED,
        incidents.VIOLATIONS,
        incidents.INVARIANTS,
        incidents.MUTANTS,
    )
}

TABLES: Final[Mapping[str, Declared]] = {**ANALYSES, COMPARISONS.name: COMPARISONS}
"""Every table of `fencepost analyze`."""
