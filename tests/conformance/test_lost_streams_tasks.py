"""A response with a streams member's tasks that is lost: at our broker and at Kafka's, through a proxy.

Neither coordinator sends the tasks again, so the member has to join again to learn them.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from fencepost import StreamsApp
from fencepost.coordinator.protocol.streams import StreamsGroupHeartbeatRequest, StreamsGroupHeartbeatResponse
from fencepost.simulation.kernel.rules import Direction, Matching, Message, dropping
from tests.conformance.proxied import Site
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]


@contextlib.asynccontextmanager
async def app_of(site: Site, topic: str, name: str, seen: set[int]) -> AsyncIterator[StreamsApp]:
    async def work(partition: Any, records: Sequence[Any]) -> None:
        seen.update(int(record.value) for record in records)

    app = StreamsApp(
        work,
        bootstrap_servers=site.servers,
        topics=[topic],
        group_id=site.group,
        client_id=name,
        threads=1,
        request_timeout_ms=1_000,  # well within the session, so that the member is not removed
    )
    await app.start()
    try:
        yield app
    finally:
        await app.close()


async def test_the_tasks_of_a_lost_response_are_processed_after_all(site: Site) -> None:
    topic = await site.topic(4)
    first: set[int] = set()
    second: set[int] = set()

    def has_the_seconds_tasks(message: Message) -> bool:
        request, response = message.request, message.response
        return (
            isinstance(request, StreamsGroupHeartbeatRequest)
            and isinstance(response, StreamsGroupHeartbeatResponse)
            and request.member_epoch > 0
            and request.member_id not in members_before
            and response.tasks is not None
            and bool(response.tasks.active)
        )

    rule = Matching(
        dropping,
        direction=Direction.RESPONSE,
        kinds=(StreamsGroupHeartbeatRequest,),
        condition=has_the_seconds_tasks,
        limit=1,
    )
    async with app_of(site, topic, "first", first):
        await site.produce(topic, range(40))
        await until(lambda: first >= set(range(40)))
        members_before = {
            request.member_id
            for _, _, request, _ in site.seen.requests
            if isinstance(request, StreamsGroupHeartbeatRequest)
        }
        assert len(members_before) == 1
        site.proxy.rules.append(rule)
        async with app_of(site, topic, "second", second):
            await until(lambda: rule.spent)
            await site.produce(topic, range(40, 400))
            await until(
                lambda: first | second >= set(range(400)),
                found=lambda: f"{len(first | second)} of 400",
            )
            assert second, "the member whose tasks were lost has none"
    came = [
        (request.member_epoch, response.tasks is not None and bool(response.tasks.active))
        for _, request, response in site.seen.responses
        if isinstance(request, StreamsGroupHeartbeatRequest) and request.member_id not in members_before
    ]
    assert {epoch for epoch, has_tasks in came if has_tasks} == {0}, "the tasks came again without a join"
