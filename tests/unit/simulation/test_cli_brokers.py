"""What `chaos`, `compare` and `conform` ask of a cluster that they start; none is started here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.simulation.cli import main
from fencepost.simulation.lab.clusters.cluster import RealCluster
from fencepost.simulation.lab.clusters.settings import KAFKA_VERSION, NEWEST_KAFKA

COMMANDS = ["chaos steady", "compare steady", "conform --cluster jvm"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What a cluster was asked to be, before the machine turned out to lack it."""
    given: dict[str, Any] = {}

    async def lacking(self: RealCluster) -> None:
        raise EnvironmentLacks("no Java")

    monkeypatch.setattr(RealCluster, "__init__", lambda self, **settings: given.update(settings))
    monkeypatch.setattr(RealCluster, "__aenter__", lacking)
    monkeypatch.chdir(tmp_path)
    return given


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("words", "kafka"), [("", KAFKA_VERSION), (f"--kafka {NEWEST_KAFKA}", NEWEST_KAFKA)])
def test_the_kafka_that_is_named_is_started(asked, command, words, kafka):
    assert main(f"{command} {words}".split()) == 3
    assert asked["kafka"] == kafka


RELEASE = 'config.release.version="4.4"'


@pytest.mark.parametrize("command", COMMANDS[:2])
def test_whose_rules_hold_is_no_property_of_a_broker(asked: dict[str, Any], command: str) -> None:
    size = "config.group.consumer.max.size=9"
    assert main([*command.split(), "--set", RELEASE, "--set", size, "--kafka", NEWEST_KAFKA]) == 3
    assert asked["properties"] == {"group.consumer.max.size": 9}


@pytest.mark.parametrize("command", COMMANDS[:2])
def test_a_scenario_of_another_release_is_refused(asked, command, capsys):
    assert main([*command.split(), "--set", RELEASE]) == 2
    assert "release.version of the scenario is 4.4, but --kafka is 4.3.1" in capsys.readouterr().err
    assert not asked
