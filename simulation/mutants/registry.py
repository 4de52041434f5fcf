"""All mutants by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fencepost.simulation.mutants.classic import CLASSIC_MUTANTS
from fencepost.simulation.mutants.coordinators import COORDINATOR_MUTANTS
from fencepost.simulation.mutants.members import MEMBER_MUTANTS
from fencepost.simulation.mutants.mutant import Mutant
from fencepost.simulation.mutants.sac import SAC_MUTANTS
from fencepost.simulation.mutants.slips import SLIPS
from fencepost.simulation.mutants.streams import STREAMS_MUTANTS
from fencepost.simulation.mutants.streams_groups import STREAMS_GROUP_MUTANTS

MUTANTS: Final[Mapping[str, Mutant]] = {
    mutant.name: mutant
    for mutant in (
        *COORDINATOR_MUTANTS,
        *MEMBER_MUTANTS,
        *SLIPS,
        *CLASSIC_MUTANTS,
        *SAC_MUTANTS,
        *STREAMS_MUTANTS,
        *STREAMS_GROUP_MUTANTS,
    )
}
