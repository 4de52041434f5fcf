"""Invariants: what must never happen, checked after every event; and what must happen once faults end.

Each judge is an observer of the world over small pure parts, which unit tests feed directly. `catalogue`
names every invariant. By what they judge, the modules are:

- consumer groups: `consumer_model` says what must follow, `consumer_groups` compares; `targets`, `sessions`,
  `expressions`
- classic groups: `classic_account` works out what must follow, `classic_comparison` and `classic_rounds`
  compare; `classic_migration`, `classic_records`
- a coordinator as a whole: `coordination`, over the steps of `step`; `commits`, `administration`, `journal`,
  `transactions`, `producers`
- members: `requests` and `classic_members`, `members` (states and callbacks), `polls`, `records`, `leaving`,
  `retries`, `commit_attempts`; `clients`, if only requests are known
- all together: `claims` (one owner) and `liveness`
"""

from __future__ import annotations

from collections.abc import Container

from fencepost.simulation.judge.base import Judge
from fencepost.simulation.judge.catalogue import NOT_ON_REAL
from fencepost.simulation.judge.claims import OneClaimant
from fencepost.simulation.judge.classic_members import ClassicMembers
from fencepost.simulation.judge.classic_records import ObservedClassicGroups
from fencepost.simulation.judge.classic_rounds import ClassicRounds
from fencepost.simulation.judge.commit_attempts import CommitRetries
from fencepost.simulation.judge.coordination import Coordination, ObservedCoordination
from fencepost.simulation.judge.leaving import Leaving
from fencepost.simulation.judge.liveness import Liveness
from fencepost.simulation.judge.members import Callbacks, Transitions
from fencepost.simulation.judge.polls import PollConsequences
from fencepost.simulation.judge.records import Records
from fencepost.simulation.judge.requests import RequestFollower, Requests
from fencepost.simulation.judge.retries import Retries
from fencepost.simulation.judge.transactions import Transactions


def all_judges(
    protocols: Container[str] = ("consumer", "classic"), *, transactions: bool = False
) -> list[Judge]:
    """New judges, in the order in which they look at an event; each set observes one run.

    Judges of classic members, and of transactions, are for worlds that have some: `protocols` are all
    protocols that members speak.
    """
    some: list[Judge] = [ClassicMembers(), ClassicRounds()] if "classic" in protocols else []
    if transactions:
        some.append(Transactions())
    coordination = Coordination()
    return [coordination, *_of_members(coordination), *some]


def real_judges(protocols: Container[str] = ("consumer",)) -> list[Judge]:
    """The judges for a run on a real broker, whose journal is observed.

    Invariants of `NOT_ON_REAL` are not reported: the catalogue has the reasons.
    """
    classic: list[Judge] = [ObservedClassicGroups(), ClassicMembers()] if "classic" in protocols else []
    judges = [ObservedCoordination(), *_of_members(), *classic]
    for judge in judges:
        judge.left_out = NOT_ON_REAL
    return judges


def _of_members(*followers: RequestFollower) -> list[Judge]:
    records = Records()
    polls, leaving, retries, commits = PollConsequences(records), Leaving(), Retries(), CommitRetries()
    requests = Requests(*followers, records, polls, leaving, retries, commits)
    rest = polls, leaving, retries, commits, Liveness(records.is_processing)
    return [OneClaimant(), Transitions(), Callbacks(), requests, records, *rest]
