"""What members on real brokers can play, told before anything is started."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.lab.chaos.playable import playable
from fencepost.simulation.lab.chaos.run import run_real
from fencepost.simulation.scenarios.load import load_any, loads

NOBODY = "127.0.0.1:9"


@pytest.mark.parametrize(
    ("scenario", "client", "told"),
    [
        ("rolling-migration", "confluent", "members of the classic protocol, which rolling-migration has"),
        ("sac-churn", "fencepost", "single active consumers"),
        ("streams-classic", "confluent", "clients of a Streams application"),
        ("streams-other-applications", "fencepost", "has faults of kind other-application"),
        ("steady", "kafka", "client 'kafka': expected one of fencepost, confluent"),
    ],
)
def test_what_can_not_be_played_is_told_before_a_broker_is_asked(scenario: str, client: Any, told: str):
    loaded: Any = load_any(scenario)
    with pytest.raises(FencepostError, match=told):
        asyncio.run(run_real(loaded, 1, NOBODY, client=client))


def patterned(group: str, later: str):
    return loads(
        f"""
        duration = "1m"
        group = {{ pattern = '{group}' }}
        topics = [{{ name = "orders", partitions = 3 }}]
        steps = [{{ kind = "subscribe", at = "10s", pattern = '{later}' }}]
        """,
        name="patterned",
    )


@pytest.mark.parametrize(("group", "later"), [("(?i)orders", "or.*"), ("or.*", "(?i)orders")])
def test_librdkafka_is_asked_whether_it_takes_a_pattern(group: str, later: str):
    wrong = patterned(group, later)
    assert playable(wrong) is wrong
    with pytest.raises(FencepostError, match=r"patterned has the pattern '\(\?i\)orders', which librdkafka"):
        playable(wrong, "confluent")
    taken = patterned("or.*", "[a-z]+")
    assert playable(taken, "confluent") is taken


def test_classic_members_take_no_pattern_on_real_brokers():
    wrong = loads(
        """
        duration = "1m"
        group = { pattern = "or.*", protocol = "classic" }
        topics = [{ name = "orders", partitions = 3 }]
        """,
        name="patterned",
    )
    with pytest.raises(FencepostError, match="classic protocol that subscribe to a pattern"):
        playable(wrong)


@pytest.mark.parametrize("scenario", ["classic-rolling-deploy", "rolling-migration", "churn"])
def test_scenarios_with_classic_members_are_played(scenario: str):
    loaded: Any = load_any(scenario, overrides=["group.protocol=classic"])
    assert playable(loaded) is loaded
