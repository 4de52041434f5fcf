"""Seeds in which a judge once found a defect of the simulation, or was wrong itself."""

from __future__ import annotations

import pytest

from fencepost.simulation.mutants.registry import MUTANTS
from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import LIBRARY, load, load_any, loads

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("scenario", "seed"),
    [
        # A process that was told to stop while it was frozen went on, and never ended.
        ("swarm", 25),
        ("swarm", 82),
        # A closing member spent all of its time on a commit, and ran no callback.
        ("swarm", 14),
        # A commit was answered after its topic was deleted; an offset outlived its topic in a failover.
        ("growing-topics", 15),
        ("growing-topics", 55),
        # A partition that the target still promised was reported as released, and taken all the same.
        ("lossy-network", 159),
        # Applications whose callbacks outlast the faults disturb the group themselves.
        ("slow-callbacks-and-poll-timeouts", 64),
        # A poll that raises what a callback raised before takes no step towards the target.
        ("slow-callbacks-and-poll-timeouts", 72),
        # A member waits for the names of its topics until the lost request times out.
        ("partitioned-members", 78),
        # A topic was deleted after a coordinator had loaded: no new one is to be looked for.
        ("regex-subscriptions", 20),
        ("regex-subscriptions", 27),
        # NOT_COORDINATOR came for a request that was older than the last search, or for an abandoned round.
        ("broker-failures", 31),
        ("broker-failures", 46),
        ("classic-operators", 52),
        ("classic-operators", 80),
        ("classic-operators", 88),
        # A batch was forgotten that ended while the application undid a transaction.
        ("transactions", 15),
        # The end of a transaction was decided, and on its way to the group when the run ended.
        ("transactions", 56),
        # An application that had given up was handed records.
        ("transactions", 105),
        # A process that stood still waited for its commit no longer than it may.
        ("transactions-and-plain-commits", 61),
        # A consumer's back-off ran out while its process stood still.
        ("sac-frozen-clients", 67),
        # Consumers of several lost nodes went in one step, and each time the group chose.
        ("sac-stale-nodes", 131),
        ("sac-stale-nodes", 133),
        # The only response with a member's tasks was lost.
        ("streams-single-threads", 18),
        # A standby task moved to a process that had less to do.
        ("streams-standby-tasks", 30),
    ],
)
def test_a_seed_that_once_failed_passes(scenario, seed):
    result = run(load_any(scenario), seed)
    assert result.violations == []
    assert result.converged


@pytest.mark.parametrize(
    ("scenario", "seed", "override"),
    [
        # An offset had expired, and its records were processed from the beginning.
        ("transactions-and-plain-commits", 20001, "transactions.plain=0"),
        # A producer retried after its consumer had failed for good.
        ("transactions-and-plain-commits", 30008, "network.latency=1s"),
        # A marker of a transaction without offsets reached the group while its log failed.
        ("transactions-and-plain-commits", 30009, "network.latency=1s"),
        # A member did not learn from the response to a commit that it had replaced.
        ("coordinator-failover", 20000, "network.latency=1s"),
        ("static-migration", 20002, "network.latency=1s"),
        # A client that makes mistakes had not made them all when the group was to be quiet.
        ("foreign-members", 30002, "network.latency=1s"),
        # A node took the response to an earlier update for the one to its last.
        ("sac-operators", 20000, "network.latency=1s"),
        # Removals were timed by the responses that told of them.
        ("streams-other-applications", 20000, "network.latency=1s"),
    ],
)
def test_a_seed_with_other_settings_that_once_failed_passes(scenario, seed, override):
    result = run(load_any(scenario, overrides=[override]), seed)
    assert result.violations == []
    assert result.converged


@pytest.mark.parametrize("seed", [0, 2, 5])
def test_a_topic_that_is_created_again_at_once_is_another(seed):
    """Commits of the old topic reached the new one of its name, and its first records were skipped."""
    text = (LIBRARY / "growing-topics.toml").read_text(encoding="utf-8")
    quick = text.replace('at = "36%"', 'at = "28.1%"')
    assert quick != text
    assert run(loads(quick), seed).violations == []


def test_a_group_that_was_emptied_between_two_protocols_begins_anew():
    """A generation that fell was reported where a classic group takes the place of an emptied one."""
    text = (LIBRARY / "rolling-migration.toml").read_text(encoding="utf-8")
    crowded = text.replace('kind = "member-crash"\nevery = "2m"', 'kind = "member-crash"\nevery = "1ms"')
    quick = crowded.replace('duration = "15m"', 'duration = "3m"')
    assert len({text, crowded, quick}) == 3
    assert run(loads(quick), 1).violations == []


SLOW = 'network.latency={median="1s",p99="20s"}'


@pytest.mark.parametrize(
    ("seed", "latency"), [(4, SLOW), (14, SLOW), (22, SLOW), (23, SLOW), (11, "network.latency=3.7s")]
)
def test_a_migrated_group_cannot_know_what_its_members_have_yet_to_let_go(seed, latency):
    """Two owners were reported of a partition that Kafka gives away, too."""
    assert run(load("rolling-migration", overrides=[latency]), seed).violations == []


@pytest.mark.parametrize("seed", [22, 36])
def test_a_join_that_comes_late_lets_two_members_own_a_partition(seed):
    """It was reported, though Kafka can't tell such a join from one in time."""
    overrides = [SLOW, "group.partition_assignment_strategy=range"]
    assert run(load("rolling-migration", overrides=overrides), seed).violations == []


@pytest.mark.parametrize(
    "mutant", ["target-told-early", "cooperative-gives-at-once", "upgraded-with-nothing"]
)
@pytest.mark.parametrize("overrides", [[], [SLOW]], ids=["fast", "slow"])
def test_all_else_that_a_migrated_group_gives_away_is_reported(mutant, overrides):
    with MUTANTS[mutant].apply():
        result = run(load("rolling-migration", overrides=overrides), 1, raises=False)
    assert "one-claimant" in {violation.invariant for violation in result.violations}


def test_a_member_that_knows_no_coordinator_may_go_without_a_commit():
    """A release without a commit was reported of a member that could not learn whom to commit to."""
    text = """
duration = "8m"
[group]
members = 6
[[topics]]
name = "a"
partitions = 12
records_per_second = 60
[[faults]]
kind = "coordinator-unavailable"
at = "119s"
lasts = "50s"
[[steps]]
kind = "scale"
at = "2m"
members = 3
over = "10s"
"""
    assert run(loads(text), 1).violations == []


@pytest.mark.parametrize("seed", [1, 2])
def test_a_commit_by_name_may_carry_a_position_of_the_topic_before(seed):
    """Offsets that fell were reported: classic commits have no topic ids, so the new topic takes them."""
    assert run(load("growing-topics", overrides=["group.protocol=classic"]), seed).violations == []
