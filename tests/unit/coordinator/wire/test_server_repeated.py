"""Questions that are asked again: answered without their handlers, as long as these would say the same."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.config import NewTopicConfig
from fencepost.coordinator.server import repeated
from fencepost.coordinator.server.brokers import Brokers
from fencepost.coordinator.server.repeated import RepeatedAnswers, RepeatedRequest
from fencepost.coordinator.server.services import Handler
from tests.unit.coordinator.wire.raw_client import Wire, nested

pytestmark = pytest.mark.real


class Counted:
    """Handlers that count how often they are asked."""

    def __init__(self) -> None:
        self.asked: Counter[ApiKey] = Counter()
        self.table: dict[int, Handler] = {}

    def __call__(self, node_id: int, table: Mapping[int, Handler]) -> Mapping[int, Handler]:
        self.table = {key: self.counting(ApiKey(key), handler) for key, handler in table.items()}
        return self.table

    def counting(self, key: ApiKey, handler: Handler) -> Handler:
        def answer(services: Any, request: Any, asked: Any) -> Any:
            self.asked[key] += 1
            return handler(services, request, asked)

        return answer


@pytest.fixture
def counted() -> Counted:
    return Counted()


@pytest.fixture
async def brokers(counted):
    async with Brokers({"orders": 2}, new_topics=NewTopicConfig(), intercept=counted) as found:
        yield found


@pytest.fixture
async def wire(brokers):
    return await Wire.to(brokers)


def topics(*names: str, version: int = 12) -> dict[str, Any]:
    return {
        "topics": tuple(
            nested(3, version, "MetadataRequestTopic", topic_id=None, name=name) for name in names
        )
    }


async def test_who_asks_and_when_makes_no_difference(brokers, counted, wire):
    other = await Wire.to(brokers, client_id="another client")
    names = {"client_software_name": "mine", "client_software_version": "1"}
    first = [await wire.ask(18, 4, **names), await wire.ask(3, 12, **topics("orders"))]
    for each in (wire, other, other):
        assert [await each.ask(18, 4, **names), await each.ask(3, 12, **topics("orders"))] == first
    assert counted.asked == {ApiKey.API_VERSIONS: 1, ApiKey.METADATA: 1}


async def test_another_question_is_another(counted, wire):
    answers = [
        await wire.ask(3, 12, **topics("orders")),
        await wire.ask(3, 12, topics=()),
        await wire.ask(3, 12, topics=None),
        await wire.ask(3, 11, **topics("orders", version=11)),
    ]
    assert [len(answer.topics) for answer in answers] == [1, 0, 1, 1]
    assert counted.asked[ApiKey.METADATA] == 4


async def test_topics_that_come_grow_and_go_are_told(brokers, counted, wire):
    async def told() -> dict[str, int]:
        answer = await wire.ask(3, 12, topics=None)
        return {topic.name: len(topic.partitions) for topic in answer.topics}

    assert [await told(), await told()] == [{"orders": 2}] * 2
    brokers.cluster.create_topics({"payments": 1})
    assert [await told(), await told()] == [{"orders": 2, "payments": 1}] * 2
    brokers.cluster.grow_topic(brokers.cluster.image.by_name["orders"], 3)
    assert [await told(), await told()] == [{"orders": 3, "payments": 1}] * 2
    brokers.cluster.delete_topic(brokers.cluster.image.by_name["payments"])
    assert [await told(), await told()] == [{"orders": 3}] * 2
    assert counted.asked[ApiKey.METADATA] == 4


async def test_an_answer_that_made_a_topic_is_not_given_again(brokers, counted, wire):
    (made,) = (await wire.ask(3, 12, **topics("made"))).topics
    (there,) = (await wire.ask(3, 12, **topics("made"))).topics
    assert there == made
    assert counted.asked[ApiKey.METADATA] == 2
    brokers.cluster.delete_topic(brokers.cluster.image.by_name["made"])
    (anew,) = (await wire.ask(3, 12, **topics("made"))).topics
    assert anew.topic_id != made.topic_id


async def test_another_handler_in_its_place_is_asked(counted, wire):
    await wire.ask(3, 12, topics=())
    plain = counted.table[ApiKey.METADATA]
    counted.table[ApiKey.METADATA] = counted.counting(ApiKey.DESCRIBE_CLUSTER, plain)
    for _ in range(3):
        await wire.ask(3, 12, topics=())
    assert counted.asked[ApiKey.DESCRIBE_CLUSTER] == 3
    counted.table[ApiKey.METADATA] = plain
    asked = counted.asked[ApiKey.METADATA]
    await wire.ask(3, 12, topics=())
    assert counted.asked[ApiKey.METADATA] == asked


async def test_long_questions_are_not_kept(counted, wire):
    long = topics(*[f"{'o' * 200}-{number}" for number in range(6)])
    assert await wire.ask(3, 12, **long, allow_auto_topic_creation=False) == await wire.ask(
        3, 12, **long, allow_auto_topic_creation=False
    )
    assert counted.asked[ApiKey.METADATA] == 2


@pytest.mark.parametrize(("limit", "value"), [("_ROOM", 100), ("_MOST", 2)])
async def test_answers_need_a_bounded_room(brokers, counted, monkeypatch, limit, value):
    monkeypatch.setattr(repeated, limit, value)
    answers = RepeatedAnswers(brokers.cluster, counted.table)
    handler = counted.table[ApiKey.METADATA]
    answer = [struct.pack(">ii", 34, 7), b"x" * 30]
    for number in range(20):
        question = RepeatedRequest("127.0.0.1", 3, 12, bytes([number]))
        answers.keep(question, handler, None, answer)
        known = answers.find(question, handler)
        assert known is not None
        assert known.to(b"\0\3\0\x0c\0\0\0\x09") == struct.pack(">ii", 34, 9) + b"x" * 30
        assert len(answers._answers) <= 2
