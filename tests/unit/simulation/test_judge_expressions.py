"""Subscriptions by expression: looked up when it is time, with the right answer, and on record."""

from __future__ import annotations

import msgspec
import pytest

from fencepost.coordinator.consumer import regular_expressions
from fencepost.coordinator.protocol import consumer
from fencepost.coordinator.protocol.outcome import Outcome, ResolveRegularExpressions, TopicsChanged
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from tests.unit.simulation.test_judge_sessions import IMAGE, Judged

Y = Topic(topic_id="Y" * 22, name="y", partitions=2)
WITH_Y = msgspec.structs.replace(TopicsImage.of([*IMAGE.by_id.values(), Y]), version=IMAGE.version + 1)


class Group(Judged):
    """A, that subscribes to `x|y`."""

    def subscribe(self, expression="x|y"):
        """A joins, or changes its expression: the effects."""
        request = consumer.ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="A",
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=(),
            subscribed_topic_regex=expression,
            topic_partitions={},
            api_version=1,
        )
        return self.looked(request)

    def looked(self, request, tamper=lambda effects: effects):
        outcome = self.live.handle(request, self.now_ms)
        self.take(request, msgspec.structs.replace(outcome, effects=tamper(outcome.effects)))
        return outcome.effects

    def answer(self, effects, **fields):
        (effect,) = effects
        event = regular_expressions.resolve(effect, self.live.image)
        self.step(msgspec.structs.replace(event, **fields))

    def beat(self, tamper=lambda effects: effects):
        member = self.live.groups["g"].members["A"]
        request = consumer.ConsumerGroupHeartbeatRequest(
            group_id="g", member_id="A", member_epoch=member.member_epoch, api_version=1
        )
        return self.looked(request, tamper)

    def silent(self):
        """A heartbeat that is answered, and leads to nothing."""
        member = self.live.groups["g"].members["A"]
        request = consumer.ConsumerGroupHeartbeatRequest(
            group_id="g", member_id="A", member_epoch=member.member_epoch, api_version=1
        )
        reply = consumer.ConsumerGroupHeartbeatResponse(
            member_id="A", member_epoch=member.member_epoch, heartbeat_interval_ms=5_000
        )
        self.take(request, Outcome(reply=reply))


@pytest.fixture
def group():
    it = Group()
    effects = it.at(1_000).subscribe()
    it.at(1_100).answer(effects)
    it.at(1_200).beat()
    assert it.live.groups["g"].resolved["x|y"].topics == ("x",)
    assert it.found == set()
    return it


def test_an_expression_is_looked_up_anew_when_a_topic_comes(group):
    group.step(TopicsChanged(image=WITH_Y))
    group.at(11_101).answer(group.beat())
    assert group.live.groups["g"].resolved["x|y"].topics == ("x", "y")
    assert group.found == set()


EARLY = (ResolveRegularExpressions(group_id="g", regular_expressions=("x|y",)),)
OTHER = (ResolveRegularExpressions(group_id="g", regular_expressions=("z",)),)
BROKEN = {"expressions-resolved"}


@pytest.mark.parametrize(
    ("image", "beats", "found"),
    [
        # A new topic is looked for, once the pause is over.
        (WITH_Y, [(11_100, None)], set()),
        (WITH_Y, [(11_101, None)], BROKEN),
        # A refresh comes every ten minutes.
        (IMAGE, [(30_000, None), (60_000, None)], set()),
        (IMAGE, [(30_000, None), (60_000, None), (601_101, None)], BROKEN),
        # A lookup is not too early, and for what members subscribe to.
        (IMAGE, [(11_100, EARLY)], BROKEN),
        (IMAGE, [(11_101, OTHER)], BROKEN),
    ],
)
def test_topics_are_looked_up_in_time(group, image, beats, found):
    group.step(TopicsChanged(image=image))
    for now_ms, effects in beats:
        group.at(now_ms)
        if effects is None:
            group.silent()
        else:
            group.beat(lambda _, effects=effects: effects)
    assert group.found & BROKEN == found


def test_an_expression_that_is_never_looked_up_is_flagged():
    it = Group()
    it.at(1_000).subscribe()
    it.judge.on_coordinator_state("b", "active", 0)
    it.silent()
    assert it.found == BROKEN


def test_two_looks_at_once_are_flagged():
    it = Group()
    effects = it.at(1_000).subscribe()
    it.at(1_100).beat(lambda _: effects)
    assert it.found == BROKEN


def dated_wrongly(outcome):
    first, *rest = outcome.records
    value = msgspec.structs.replace(first.value, timestamp_ms=7)
    return Outcome(records=(msgspec.structs.replace(first, value=value), *rest))


@pytest.mark.parametrize(
    ("found_topics", "tamper"),
    [
        (("x", "y"), lambda outcome: outcome),
        (("x",), dated_wrongly),
        (("x",), lambda _: Outcome()),
    ],
    ids=["wrong-match", "wrong-record", "no-record"],
)
def test_a_result_is_right_and_on_record(found_topics, tamper):
    it = Group()
    (effect,) = it.at(1_000).subscribe("x.*")
    event = regular_expressions.resolve(effect, it.live.image)
    event = msgspec.structs.replace(event, topics={"x.*": found_topics})
    it.take(event, tamper(it.live.handle(event, it.now_ms)))
    assert it.found >= BROKEN
