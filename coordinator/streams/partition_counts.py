"""Partition counts of the internal topics of a topology (KIP-1071, Internal topics).

A repartition topic has as many as its subtopology's largest input, unless the application sets a number or
other topics must be copartitioned with it; a changelog has as many as its subtopology has tasks.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Mapping, Sequence

from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.streams import StatusCode, Subtopology
from fencepost.coordinator.protocol.topics import TopicsImage


class TopicsNotReady(Exception):
    """The topics do not fit the topology; members receive `code`."""

    def __init__(self, code: StatusCode, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


def broken(message: str) -> ProtocolError:
    """Return the error for a case that Kafka does not expect: UNKNOWN_SERVER_ERROR."""
    return ProtocolError(ErrorCode.UNKNOWN_SERVER_ERROR, message)


def invalid_topology(message: str) -> ProtocolError:
    """Return the error for a topology that can never work."""
    return ProtocolError(ErrorCode.STREAMS_INVALID_TOPOLOGY, message)


class DecidedPartitionCounts:
    """The numbers of partitions of a topology's topics: existing ones first, then those decided for it.

    :raises ProtocolError: on construction, STREAMS_INVALID_TOPOLOGY if they cannot be decided.
    :raises TopicsNotReady: if topics that are read together differ.
    """

    def __init__(self, subtopologies: Sequence[Subtopology], image: TopicsImage) -> None:
        self._subtopologies = subtopologies
        self._image = image
        self._fixed_number: int | None = None
        """The number that all repartition topics have whose number the application sets, once compared."""
        self.decided: dict[str, int] = {}
        self.decided.update(self._repartition_topics())
        self._copartition()
        self.decided.update(self._changelogs())

    def of(self, topic: str) -> int | None:
        """Return a topic's number of partitions; None if it does not exist and its number was not decided."""
        known = self._image.by_name.get(topic)
        return self.decided.get(topic) if known is None else known.partitions

    def _needed(self, topic: str) -> int:
        found = self.of(topic)
        if found is None:
            raise broken(f"Number of partitions is not set for topic: {topic}")
        return found

    def tasks(self, subtopology: Subtopology) -> int:
        """Return the number of tasks: as many as the largest input has partitions."""
        return max(map(self._needed, inputs(subtopology)))

    # Repartition topics

    def _repartition_topics(self) -> dict[str, int]:
        counts = {
            topic.name: topic.partitions
            for subtopology in self._subtopologies
            for topic in subtopology.repartition_source_topics
            if topic.partitions
        }
        self._pass_on(counts)
        for subtopology in self._subtopologies:
            if any(topic.name not in counts for topic in subtopology.repartition_source_topics):
                raise invalid_topology(
                    "Failed to compute number of partitions for all repartition topics, because "
                    "a repartition source topic is never used as a sink topic."
                )
        return counts

    def _pass_on(self, counts: dict[str, int]) -> None:
        """Add the outputs of each subtopology: they have as many partitions as its largest input that is
        known.

        Kafka looks at all subtopologies in rounds, in their order, until a round finds no more. Each one is
        looked at here in the first of these rounds that finds an input of it, and at no other time.
        """
        readers: dict[str, list[int]] = {}
        due: list[tuple[int, int]] = []
        """Heap of the rounds and indexes of the subtopologies with a known input."""
        is_due = [False] * len(self._subtopologies)
        for index, subtopology in enumerate(self._subtopologies):
            for topic in subtopology.repartition_source_topics:
                readers.setdefault(topic.name, []).append(index)
            if self._largest_input(subtopology, counts) is not None:
                is_due[index] = True
                due.append((0, index))  # a list in order is a heap
        while due:
            number, index = heapq.heappop(due)
            subtopology = self._subtopologies[index]
            new = [sink for sink in subtopology.repartition_sink_topics if sink not in counts]
            if not new:
                continue
            found = self._largest_input(subtopology, counts)
            assert found is not None
            counts.update(dict.fromkeys(new, found))
            for reader in itertools.chain.from_iterable(readers.get(sink, ()) for sink in new):
                if not is_due[reader]:
                    is_due[reader] = True
                    heapq.heappush(due, (number if reader > index else number + 1, reader))
        if any(sink not in counts for one in self._subtopologies for sink in one.repartition_sink_topics):
            raise invalid_topology(
                "Failed to compute number of partitions for all repartition topics. "
                "There may be loops in the topology that cannot be resolved."
            )

    def _largest_input(self, subtopology: Subtopology, counts: Mapping[str, int]) -> int | None:
        known = [counts.get(topic.name) for topic in subtopology.repartition_source_topics]
        known += [self.of(topic) for topic in subtopology.source_topics]
        return max((count for count in known if count is not None), default=None)

    # Topics that are read together

    def _copartition(self) -> None:
        fixed = {
            topic.name
            for subtopology in self._subtopologies
            for topic in subtopology.repartition_source_topics
            if topic.partitions
        }
        flexible = {
            topic.name
            for subtopology in self._subtopologies
            for topic in subtopology.repartition_source_topics
            if not topic.partitions
        }
        for subtopology in self._subtopologies:
            for together in copartition_groups(subtopology):
                self.decided.update(self._enforced(together, fixed, flexible))

    def _enforced(
        self, together: Collection[str], fixed: Collection[str], flexible: Collection[str]
    ) -> dict[str, int]:
        """Return the one number for the repartition topics of a group."""
        if not together:
            return {}
        counts = {topic: self._needed(topic) for topic in sorted(together)}
        internal = {topic: n for topic, n in counts.items() if topic in fixed or topic in flexible}
        external = {topic: n for topic, n in counts.items() if topic not in internal}
        if external:
            number = _same(external, external)
        elif fixed:
            if self._fixed_number is None:  # no group changes the numbers of these topics
                self._fixed_number = _same({topic: self._needed(topic) for topic in sorted(fixed)}, internal)
            number = self._fixed_number
        else:
            number = max(internal.values())
        for topic, count in internal.items():
            if topic in fixed and count != number:
                raise TopicsNotReady(
                    StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                    f"Number of partitions [{count}] of repartition topic [{topic}] doesn't match number of "
                    f"partitions [{number}] of the source topic.",
                )
        return dict.fromkeys(internal, number)

    # Changelogs

    def _changelogs(self) -> dict[str, int]:
        counts = {}
        for subtopology in self._subtopologies:
            if not inputs(subtopology):
                raise invalid_topology(f"No source topics found for subtopology {subtopology.subtopology_id}")
            changelogs = subtopology.state_changelog_topics
            if changelogs:
                counts.update(dict.fromkeys((topic.name for topic in changelogs), self.tasks(subtopology)))
        return counts


def inputs(subtopology: Subtopology) -> list[str]:
    """Return all topics that a subtopology reads."""
    return [*subtopology.source_topics, *(topic.name for topic in subtopology.repartition_source_topics)]


def copartition_groups(subtopology: Subtopology) -> list[frozenset[str]]:
    """Return the topics that a subtopology reads together, by name.

    :raises ProtocolError: UNKNOWN_SERVER_ERROR for an index beyond the subtopology's lists.
    """
    sources, internal = subtopology.source_topics, subtopology.repartition_source_topics
    found = []
    for group in subtopology.copartition_groups:
        if not all(0 <= index < len(sources) for index in group.source_topics):
            raise broken("a copartition group names a source topic that does not exist")
        if not all(0 <= index < len(internal) for index in group.repartition_source_topics):
            raise broken("a copartition group names a repartition topic that does not exist")
        names = [sources[index] for index in group.source_topics]
        names += [internal[index].name for index in group.repartition_source_topics]
        found.append(frozenset(names))
    return found


def _same(counts: Mapping[str, int], shown: Mapping[str, int]) -> int:
    """Return the number that all of them have."""
    number = next(iter(counts.values()))
    if any(count != number for count in counts.values()):
        pairs = ", ".join(f"{topic}={count}" for topic, count in sorted(shown.items()))
        raise TopicsNotReady(
            StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
            f"Following topics do not have the same number of partitions: [{{{pairs}}}]",
        )
    return number
