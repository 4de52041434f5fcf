"""When a classic group counts as stable: its requests handed in one by one, on the loop of the brokers."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import msgspec
import pytest

from fencepost import EmbeddedKafka
from fencepost.coordinator.protocol.classic import (
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
)
from fencepost.coordinator.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    write_assignment,
    write_subscription,
)
from fencepost.simulation.embedded.shadow import ShadowDiverged


def joins(member_id: str, token: int, group_id: str = "g") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group_id,
        member_id=member_id,
        protocol_type="consumer",
        protocols=(
            JoinGroupProtocol("range", write_subscription(ConsumerProtocolSubscription(topics=("orders",)))),
        ),
        session_timeout_ms=45_000,
        rebalance_timeout_ms=60_000,
        api_version=5,  # a new member is told its id, and joins again with it
        new_member_suffix=f"member-{token}",
        token=token,
    )


def test_a_follower_that_was_not_told_what_it_got_keeps_its_group_from_being_stable() -> None:
    with EmbeddedKafka(topics={"orders": 2}) as kafka:
        group = kafka.group("g")

        def ask(request: JoinGroupRequest | SyncGroupRequest) -> asyncio.Future[Any]:
            async def asked() -> asyncio.Future[Any]:
                reply = kafka.endpoint.brokers.groups.ask(request, 1)
                if isinstance(reply, asyncio.Future):
                    return reply
                done = asyncio.get_running_loop().create_future()
                done.set_result(reply)
                return done

            return kafka.thread.submit(asked()).result()

        def answer(waiting: asyncio.Future[Any]) -> Any:
            async def awaited() -> Any:
                return await waiting

            return kafka.thread.submit(awaited()).result()

        leader, follower = (answer(ask(joins("", token))).member_id for token in (1, 2))
        assert answer(ask(joins(leader, 3))).leader == leader
        waiting = ask(joins(follower, 4))
        generation = answer(ask(joins(leader, 5))).generation
        assert answer(waiting).generation == generation
        parts = {
            leader: write_assignment(ConsumerProtocolAssignment(partitions={"orders": (0,)})),
            follower: write_assignment(ConsumerProtocolAssignment(partitions={"orders": (1,)})),
        }
        sync = SyncGroupRequest(group_id="g", generation=generation, member_id=leader, token=6)
        ask(msgspec.structs.replace(sync, assignments=parts))
        assert group.state == "Stable"
        assert [len(each.owned) for each in group.members()] == [1, 1]
        with pytest.raises(TimeoutError):
            group.wait_stable(members=2, timeout=0)
        ask(msgspec.structs.replace(sync, member_id=follower, token=7))
        assert {each.member_id for each in group.wait_stable(members=2, timeout=0)} == {leader, follower}


@pytest.mark.parametrize("in_both", [True, False])
def test_a_generation_that_jumps_is_seen(in_both: bool) -> None:
    with EmbeddedKafka(topics={"orders": 2}) as kafka:

        async def play() -> None:
            groups, seen = kafka.endpoint.brokers.groups, kafka.endpoint.observer
            first = groups.ask(joins("", 1), 1)
            leader = (await first if isinstance(first, asyncio.Future) else first).member_id
            waiting = groups.ask(joins(leader, 2), 1)
            assert isinstance(waiting, asyncio.Future)
            joined = await waiting
            seen.catch_up()
            shard = groups.shard_of("g")
            answers, follows = shard.coordinator, seen._shards[shard.number].replayed.active
            assert answers is not None
            assert follows is not None
            for coordinator in (answers, follows) if in_both else (answers,):
                coordinator.classic.groups["g"].generation += 4
            groups.ask(
                SyncGroupRequest(
                    group_id="g", member_id=leader, generation=joined.generation, assignments={}, token=3
                ),
                1,
            )

        assert kafka.check() == []
        kafka.thread.submit(play()).result()
        if in_both:
            assert "classic-answers" in {violation.invariant for violation in kafka.check()}
        else:
            with pytest.raises(ShadowDiverged, match="when it was taken again"):
                kafka.check()


def test_a_change_that_is_seen_in_a_step_of_another_group_is_listed_under_its_own() -> None:
    with EmbeddedKafka(topics={"orders": 2}) as kafka:
        observer = kafka.endpoint.observer

        async def play() -> tuple[str, set[str], set[str]]:
            groups = kafka.endpoint.brokers.groups
            shard = groups.shard_of("g")
            quiet = next(
                name for name in map("quiet-{}".format, itertools.count()) if groups.shard_of(name) is shard
            )
            for group_id in ("g", quiet):
                assert isinstance(groups.ask(joins("", 1, group_id), 1), JoinGroupResponse)
            assert observer.check() == []
            for coordinator in (shard.coordinator, observer._shards[shard.number].replayed.active):
                assert coordinator is not None
                coordinator.classic.groups[quiet].generation += 4
            groups.ask(joins("", 2), 1)
            found = {each.invariant for each in observer.check("g")}
            return quiet, found, {each.invariant for each in observer.check("quiet-")}

        quiet, others, own = kafka.thread.submit(play()).result()
        assert not others
        assert "classic-generations" in own
        assert {row.group for row in observer.trace.rows if row.error == "classic-generations"} == {quiet}
