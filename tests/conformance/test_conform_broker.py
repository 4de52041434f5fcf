"""`fencepost conform` against real Kafkas in JVMs: no answer may differ but where that is on purpose.

Needs Java 17 or newer and Maven, or Kafka in the user's cache; else it is skipped.
"""

from __future__ import annotations

import pytest

from fencepost.simulation.lab.clusters.cluster import RealCluster
from fencepost.simulation.lab.clusters.settings import KAFKA_VERSION, NEWEST_KAFKA, KafkaVersion, Profile
from fencepost.simulation.lab.conform.broker import Judge
from fencepost.simulation.lab.conform.scripts import scripted
from fencepost.simulation.lab.conform.suite import Report, Suite

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]
REQUESTS = 2_500


async def judged(profile: Profile, requests: int, kafka: KafkaVersion = KAFKA_VERSION) -> Report:
    async with RealCluster(profile=profile, kafka=kafka) as cluster:
        judge = await Judge.connect(cluster.bootstrap_servers)
        try:
            return await Suite(judge, "ci").run(scripted(judge.config), seed=1, requests=requests)
        finally:
            await judge.close()


@pytest.mark.long
@pytest.mark.usefixtures("kafka_installation")
async def test_no_answer_differs() -> None:
    report = await judged("fast", REQUESTS)
    assert report.differences == []
    assert report.requests >= REQUESTS
    assert report.unclear < 10
    assert "expression-matches-nothing" in {seen.name for seen in report.deviations}
    # These would need a broker that allows small groups only, one that puts off targets, and Kafka 4.4.
    untested = {rule.rule for rule in report.rules if rule.verdict == "untested"}
    assert untested == {
        "check.group_full",
        "classic.join.full",
        "streams.group.full",
        "streams.assignment.delayed",
        "streams.target.valid",
    }


@pytest.mark.long
@pytest.mark.usefixtures("kafka_installation")
async def test_no_answer_differs_with_stock_settings() -> None:
    report = await judged("stock", 800)
    assert report.differences == []
    verdicts = {rule.rule: rule.verdict for rule in report.rules}
    assert verdicts["target.batched"] == verdicts["streams.assignment.delayed"] == "pass"


@pytest.mark.long
@pytest.mark.usefixtures("newest_kafka_installation")
async def test_no_answer_of_the_newest_kafka_differs() -> None:
    report = await judged("fast", REQUESTS, NEWEST_KAFKA)
    assert report.differences == []
    verdicts = {rule.rule: rule.verdict for rule in report.rules}
    assert verdicts["regex.join_unresolved"] == verdicts["describe.empty"] == "pass"
    assert verdicts["streams.target.valid"] == verdicts["streams.revocation.confirmed"] == "pass"
    assert verdicts["migration.downgrade"] == verdicts["classic.waits"] == "pass"
