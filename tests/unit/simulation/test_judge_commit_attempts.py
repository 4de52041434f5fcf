"""Histories of commits that fail, and are made again or not."""

from __future__ import annotations

import msgspec
import pytest

from fencepost.simulation.judge.commit_attempts import CommitRetries
from tests.unit.simulation.member_worlds import CODES, History, rows


class Committed(History):
    """A member whose application commits in that way."""

    def __init__(self, mode: str) -> None:
        super().__init__(CommitRetries())
        application = msgspec.structs.replace(self.world.scenario.application, commit=mode)
        self.world.scenario = msgspec.structs.replace(self.world.scenario, application=application)
        self.play("0 host start")

    def into(self, at_us: int, state: str) -> None:
        self.move(at_us, "target_received", "STABLE", state)

    def told(self, at_us: int, code: str) -> None:
        """The application gets the result of its commit."""
        self.judge.on_commit_told("m", CODES[code], at_us)

    def release(self, at_us: int, partition: str = "0") -> None:
        self.call(at_us, "revoked", "begin", partition)


AUTOMATIC = """
waits for the response: 0 into RECONCILING; 1 commit 5 sent; 2 release -> commit-before-release
waits for no other partition: 0 into RECONCILING; 1 commit 5 sent; 2 release 1 ->
waits no longer than it may: 0 into RECONCILING; 1 commit 5 sent; 300 release ->
makes an earlier commit again: 1 commit 5 LOADING; 2 into RECONCILING; 3 release -> commit-before-release
makes it again in its time: 0 into RECONCILING; 1 commit 5 LOADING; 100 commit 5 LOADING;
    302 commit 5 LOADING; 302 release ->
waits for a topic: 0 into RECONCILING; 1 commit 5 NO_TOPIC; 1 into RECONCILING; 2 commit 5 -> commits-end
waits for an epoch: 0 into RECONCILING; 1 commit 5 STALE; 1 into RECONCILING; 2 commit 5 ->
has time for a topic: 0 into STABLE; 1 commit 5 NO_TOPIC; 1 into RECONCILING; 2 commit 5 ->
"""
SYNC = """
releases what it likes: 0 into RECONCILING; 1 commit 5 STALE; 1 release ->
hears of a load: 1 commit 5 LOADING; 1 poll begin -> commits-end
hears of a failure: 1 commit 5 late; 1 poll begin -> commits-end
hears of a stale epoch: 1 commit 5 STALE; 1 poll begin ->
hears of a lost topic: 1 commit 5 NO_TOPIC; 1 poll begin ->
hears that it is not known: 1 commit 5 UNKNOWN; 1 poll begin ->
commits again after a load: 1 commit 5 LOADING; 2 commit 5 ->
commits again in vain: 1 commit 5 STALE; 2 commit 5 -> commits-end
commits again for a lost topic: 1 commit 5 NO_TOPIC; 2 commit 5 -> commits-end
commits again after a poll: 1 commit 5 STALE; 1 poll begin; 2 commit 5 ->
commits again after a callback: 1 commit 5 STALE; 1 release; 2 commit 5 ->
commits something else: 1 commit 5 STALE; 2 commit 6 ->
"""
ASYNC = """
is told that it was too late: 1 commit 5; 1 call revoked end 0; 1 told STALE ->
is told that it is too late: 1 call revoked end 0; 1 commit 5; 1 told STALE ->
is told after it stood still: 1 call revoked end 0; 2 host freeze; 3 host thaw; 3 commit 5; 3 told STALE ->
is another process: 1 call revoked end 0; 2 host start; 3 commit 5; 3 told STALE -> commits-end
"""
TOLD = """\
is told the success: 1 commit 5; 1 told NONE | 2 told NONE ->
is told of no failure: 1 commit 5; 1 told STALE; 2 told NONE -> commits-end
is told the failure: 1 commit 5 STALE; 1 told STALE | 2 told NONE ->
is told of no success: 1 commit 5 STALE; 1 told NONE; 2 told NONE -> commits-end
"""


MODES = {"auto": AUTOMATIC, "sync": SYNC + TOLD, "async": ASYNC + TOLD}


@pytest.mark.parametrize(
    ("mode", "script", "broken"),
    [
        pytest.param(mode, *row.values, id=f"{mode} {row.id}")
        for mode, table in MODES.items()
        for row in rows(table)
    ],
)
def test_an_application_that_commits(mode, script, broken):
    assert Committed(mode).play(script) == broken


@pytest.mark.parametrize("state", ["RECONCILING", "UNJOINED", "PREPARE_LEAVING"])
@pytest.mark.parametrize("answer", ["LOADING", "STALE", "late", "NO_TOPIC", "UNKNOWN", "NONE"])
def test_partitions_are_not_released_while_a_commit_of_them_may_be_made_again(state, answer):
    flagged = answer in ("LOADING", "STALE", "late") and state != "PREPARE_LEAVING"
    found = Committed("auto").play(f"0 into {state}; 1 commit 5 {answer}; 1 release")
    assert found == (["commit-before-release"] if flagged else [])
