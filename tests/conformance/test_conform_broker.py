"""`fencepost conform` against real Kafkas in JVMs: no answer may differ but where that is on purpose.

Needs Java 17 or newer and Maven, or Kafka in the user's cache; else it is skipped.
"""

from __future__ import annotations

import pytest

from fencepost.simulation.lab.clusters.cluster import RealCluster
from fencepost.simulation.lab.clusters.settings import KAFKA_VERSION, NEWEST_KAFKA, KafkaVersion, Profile
from fencepost.simulation.lab.conform.broker import JUDGE_PROPERTIES, ReferenceBroker
from fencepost.simulation.lab.conform.scripts import scripted
from fencepost.simulation.lab.conform.suite import Report, Suite

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]
REQUESTS = 2_500
NEED_OTHER_BROKERS = {
    "beat.consumer.GROUP_MAX_SIZE_REACHED",
    "classic_join.classic.GROUP_MAX_SIZE_REACHED",
    "streams_beat.streams.GROUP_MAX_SIZE_REACHED",
    "streams_beat.status.ASSIGNMENT_DELAYED",
    "streams.target.valid",
}
"""Names that need a broker of small groups only, one that delays targets, and Kafka 4.4."""


async def judged(profile: Profile, requests: int, kafka: KafkaVersion = KAFKA_VERSION) -> Report:
    async with RealCluster(profile=profile, kafka=kafka, properties=JUDGE_PROPERTIES) as cluster:
        judge = await ReferenceBroker.connect(cluster.bootstrap_servers)
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
    untested = {rule.rule for rule in report.rules if rule.verdict == "untested"}
    assert untested >= NEED_OTHER_BROKERS
    assert len(untested) < 40  # of 427: 29 with 2,500 requests, 7 with 8,000


@pytest.mark.long
@pytest.mark.usefixtures("kafka_installation")
async def test_no_answer_differs_with_stock_settings() -> None:
    report = await judged("stock", 400)
    assert report.differences == []
    verdicts = {rule.rule: rule.verdict for rule in report.rules}
    assert (
        verdicts["group.consumer.Stable.Assigning"]
        == verdicts["streams_beat.status.ASSIGNMENT_DELAYED"]
        == "pass"
    )


@pytest.mark.long
@pytest.mark.usefixtures("newest_kafka_installation")
async def test_no_answer_of_the_newest_kafka_differs() -> None:
    report = await judged("fast", 1_000, NEWEST_KAFKA)
    assert report.differences == []
    verdicts = {rule.rule: rule.verdict for rule in report.rules}
    assert verdicts["regex.resolution"] == verdicts["describe.state.Empty"] == "pass"
    assert verdicts["streams.target.valid"] == verdicts["streams_beat.member.UNREVOKED.STABLE+"] == "pass"
    assert verdicts["group.consumer.classic.beat"] == verdicts["classic.waits"] == "pass"
