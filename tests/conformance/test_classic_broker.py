"""The classic protocol and migration request by request, the same at our coordinator and at Kafka's."""

from __future__ import annotations

import pytest

from fencepost.simulation.lab.clusters.cluster import RealCluster
from fencepost.simulation.lab.conform.broker import ReferenceBroker
from fencepost.simulation.lab.conform.scripts import classic
from fencepost.simulation.lab.conform.suite import Suite

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]


async def test_scripts_of_the_classic_protocol(cluster: RealCluster) -> None:
    judge = await ReferenceBroker.connect(cluster.bootstrap_servers)
    try:
        report = await Suite(judge, "classic", workers=4).run(classic(judge.config), seed=0, requests=0)
    finally:
        await judge.close()
    assert report.differences == []
    parts = ("classic", "group.classic.", "group.none.classic.", "group.consumer.classic.")
    verdicts = {rule.rule: rule.verdict for rule in report.rules if rule.rule.startswith(parts)}
    assert {*verdicts.values()} == {"pass", "untested"}
    assert sum(verdict == "untested" for verdict in verdicts.values()) < 10
    assert verdicts["group.consumer.classic.beat"] == verdicts["group.classic.consumer.beat"] == "pass"
    assert {seen.name for seen in report.deviations} >= {
        "classic-request-repeated",
        "classic-subscription-malformed",
        "classic-sync-left",
        "migration-back-by-static-member",
        "migration-by-static-member",
        "migration-of-two-owners",
    }
