"""All checkers of consumer groups, ready to watch one world."""

from __future__ import annotations

from fencepost.simulation.checkers.base import Checker
from fencepost.simulation.checkers.callbacks import Callbacks
from fencepost.simulation.checkers.claims import OneClaimant
from fencepost.simulation.checkers.coordination import Coordination
from fencepost.simulation.checkers.liveness import Liveness
from fencepost.simulation.checkers.records import Records
from fencepost.simulation.checkers.requests import Requests
from fencepost.simulation.checkers.transitions import Transitions


def all_checkers() -> list[Checker]:
    """New checkers, in the order in which they look at an event; each set watches one run."""
    records = Records()
    requests = Requests(records.on_commit_request)
    return [Coordination(), OneClaimant(), Transitions(), Callbacks(), requests, records, Liveness()]
