"""The partition counts of repartition topics are those of Kafka's rounds, in a linear number of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.coordinator.protocol.errors import ProtocolError
from fencepost.coordinator.protocol.streams import CopartitionGroup, Subtopology, TopicInfo, Topology
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.coordinator.streams.partition_counts import DecidedPartitionCounts
from fencepost.coordinator.streams.topology import configure
from tests.growth import assert_linear

IMAGE = TopicsImage.of(Topic(topic_id=f"id-{n}", name=f"in{n}", partitions=n) for n in range(1, 6))
NAMES = [f"r{number}" for number in range(6)]


def subtopology(
    name: str,
    sources: Sequence[str] = (),
    internal: Sequence[TopicInfo] = (),
    sinks: Sequence[str] = (),
    changelogs: Sequence[TopicInfo] = (),
    together: Sequence[CopartitionGroup] = (),
) -> Subtopology:
    return Subtopology(
        subtopology_id=name,
        source_topics=tuple(sources),
        repartition_source_topics=tuple(internal),
        repartition_sink_topics=tuple(sinks),
        state_changelog_topics=tuple(changelogs),
        copartition_groups=tuple(together),
    )


def flexible(*names: str) -> list[TopicInfo]:
    return [TopicInfo(name=name, partitions=0) for name in names]


@st.composite
def topologies(draw: st.DrawFn) -> tuple[Subtopology, ...]:
    infos = [TopicInfo(name=name, partitions=draw(st.sampled_from([0, 0, 0, 7, 9]))) for name in NAMES]
    few = {"unique": True, "max_size": 3}
    return tuple(
        subtopology(
            str(number),
            draw(st.lists(st.sampled_from(sorted(IMAGE.by_name)), **few)),
            draw(st.lists(st.sampled_from(infos), **few)),
            draw(st.lists(st.sampled_from(NAMES), **few)),
        )
        for number in range(draw(st.integers(1, 7)))
    )


def in_rounds(subtopologies: Sequence[Subtopology]) -> dict[str, int] | None:
    """Look at each subtopology in each round, as Kafka does; None for a topology that it refuses."""
    internal = [topic for one in subtopologies for topic in one.repartition_source_topics]
    counts = {topic.name: topic.partitions for topic in internal if topic.partitions}
    again = progress = True
    while again:
        if not progress:
            return None
        again = progress = False
        for one in subtopologies:
            for sink in one.repartition_sink_topics:
                if sink in counts:
                    continue
                found = [
                    counts[topic.name] for topic in one.repartition_source_topics if topic.name in counts
                ]
                found += [IMAGE.by_name[topic].partitions for topic in one.source_topics]
                if found:
                    counts[sink] = max(found)
                    progress = True
                else:
                    again = True
    return counts if all(topic.name in counts for topic in internal) else None


@given(topologies())
def test_the_counts_are_those_of_rounds(subtopologies: tuple[Subtopology, ...]) -> None:
    expected = in_rounds(subtopologies)
    readable = tuple(one for one in subtopologies if one.source_topics or one.repartition_source_topics)
    if expected is None or len(readable) < len(subtopologies):
        with pytest.raises(ProtocolError):
            DecidedPartitionCounts(subtopologies, IMAGE)
    else:
        assert DecidedPartitionCounts(subtopologies, IMAGE).decided == expected


def chain(size: int) -> tuple[Subtopology, ...]:
    """Each one reads what the next one in the list writes."""
    first = subtopology("first", ["in1"], sinks=["d0"])
    links = (subtopology(f"s{n}", internal=flexible(f"d{n}"), sinks=[f"d{n + 1}"]) for n in range(size))
    return tuple(reversed([first, *links]))


def fan(size: int) -> tuple[Subtopology, ...]:
    """One writes to many, and another one reads them all."""
    names = [f"d{n}" for n in range(size)]
    return (
        subtopology("all", internal=flexible(*names), changelogs=flexible(*(f"c{n}" for n in range(size)))),
        subtopology("first", ["in1"], sinks=names),
    )


def fixed(size: int) -> tuple[Subtopology, ...]:
    """Many pairs of topics that are read together, and whose number is set."""
    topics = [TopicInfo(name=f"d{n}", partitions=7) for n in range(size)]
    together = CopartitionGroup(source_topics=(), source_topic_regex=(), repartition_source_topics=(0, 1))
    return (
        *(subtopology(f"s{n}", internal=topics[n : n + 2], together=[together]) for n in range(size - 1)),
        subtopology("first", ["in1"], sinks=[topic.name for topic in topics]),
    )


@pytest.mark.parametrize("shape", [chain, fan, fixed])
def test_the_work_grows_as_the_topology_does(shape: Callable[[int], tuple[Subtopology, ...]]) -> None:
    def run(size: int) -> Callable[[], object]:
        topology = Topology(epoch=1, subtopologies=shape(size))
        return lambda: configure(topology, IMAGE)

    assert_linear(run, 100)
