"""Invariants: what must never happen, checked after every event; and what must happen once faults end.

Each checker is an observer of the world over small pure parts, which unit tests feed directly. `catalogue`
names every invariant.
"""

from __future__ import annotations

from collections.abc import Container

from fencepost.simulation.checkers.base import Checker
from fencepost.simulation.checkers.catalogue import NOT_ON_REAL
from fencepost.simulation.checkers.claims import OneClaimant
from fencepost.simulation.checkers.classic import ClassicGroupsChecker, ObservedClassicGroups
from fencepost.simulation.checkers.classic_members import ClassicMembers
from fencepost.simulation.checkers.classic_rounds import ClassicRounds
from fencepost.simulation.checkers.commit_attempts import CommitRetries
from fencepost.simulation.checkers.coordination import Coordination, ObservedCoordination
from fencepost.simulation.checkers.leaving import Leaving
from fencepost.simulation.checkers.liveness import Liveness
from fencepost.simulation.checkers.members import Callbacks, Transitions
from fencepost.simulation.checkers.polls import PollConsequences
from fencepost.simulation.checkers.records import Records
from fencepost.simulation.checkers.requests import RequestFollower, Requests
from fencepost.simulation.checkers.retries import Retries
from fencepost.simulation.checkers.transactions import Transactions


def all_checkers(
    protocols: Container[str] = ("consumer", "classic"), *, transactions: bool = False
) -> list[Checker]:
    """New checkers, in the order in which they look at an event; each set observes one run.

    Checkers of classic members, and of transactions, are for worlds that have some: `protocols` are all
    protocols that members speak.
    """
    some: list[Checker] = [ClassicMembers(), ClassicRounds()] if "classic" in protocols else []
    if transactions:
        some.append(Transactions())
    coordination = Coordination()
    return [coordination, ClassicGroupsChecker(), *_of_members(coordination), *some]


def real_checkers(protocols: Container[str] = ("consumer",)) -> list[Checker]:
    """The checkers for a run on a real broker, whose journal is observed.

    Invariants of `NOT_ON_REAL` are not reported: the catalogue has the reasons.
    """
    classic: list[Checker] = [ObservedClassicGroups(), ClassicMembers()] if "classic" in protocols else []
    checkers = [ObservedCoordination(), *_of_members(), *classic]
    for checker in checkers:
        checker.left_out = NOT_ON_REAL
    return checkers


def _of_members(*followers: RequestFollower) -> list[Checker]:
    records = Records()
    polls, leaving, retries, commits = PollConsequences(records), Leaving(), Retries(), CommitRetries()
    requests = Requests(*followers, records, polls, leaving, retries, commits)
    rest = polls, leaving, retries, commits, Liveness(records.is_processing)
    return [OneClaimant(), Transitions(), Callbacks(), requests, records, *rest]
