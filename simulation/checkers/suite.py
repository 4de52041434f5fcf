"""All checkers of consumer groups, ready to watch one world."""

from __future__ import annotations

from collections.abc import Container

from fencepost.simulation.checkers.base import Checker
from fencepost.simulation.checkers.callbacks import Callbacks
from fencepost.simulation.checkers.catalogue import NOT_ON_REAL
from fencepost.simulation.checkers.claims import OneClaimant
from fencepost.simulation.checkers.classic import ClassicGroupsChecker
from fencepost.simulation.checkers.classic_members import ClassicMembers
from fencepost.simulation.checkers.coordination import Coordination
from fencepost.simulation.checkers.liveness import Liveness
from fencepost.simulation.checkers.observed import ObservedCoordination
from fencepost.simulation.checkers.records import Records
from fencepost.simulation.checkers.requests import Requests
from fencepost.simulation.checkers.transitions import Transitions


def all_checkers(protocols: Container[str] = ("consumer", "classic")) -> list[Checker]:
    """New checkers, in the order in which they look at an event; each set watches one run.

    Those of classic members watch worlds that have some: `protocols` are all that members speak.
    """
    of_classic_members = [ClassicMembers()] if "classic" in protocols else []
    return [Coordination(), ClassicGroupsChecker(), *_of_members(), *of_classic_members]


def real_checkers() -> list[Checker]:
    """The same for a run on a real broker, whose journal is observed.

    Invariants of `NOT_ON_REAL` are not reported: the catalogue says why.
    """
    checkers = [ObservedCoordination(), *_of_members()]
    for checker in checkers:
        checker.left_out = NOT_ON_REAL
    return checkers


def _of_members() -> list[Checker]:
    records = Records()
    requests = Requests(records.on_commit_request)
    return [OneClaimant(), Transitions(), Callbacks(), requests, records, Liveness(records.is_processing)]
