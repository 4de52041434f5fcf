"""Metrics of the brokers and their groups for Prometheus, in the names of this module.

Values are read when they are asked for. Requests are counted by their handlers, so Metadata and ApiVersions
to which a broker responds from memory are not among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from fencepost.coordinator.codec.registry import api_name
from fencepost.simulation.embedded.endpoint import EmbeddedEndpoint


class _Described(NamedTuple):
    """One metric: its name after `fencepost_`, its meaning, and its labels."""

    name: str
    meaning: str
    labels: tuple[str, ...] = ()
    made: type[Any] = GaugeMetricFamily

    @property
    def sample(self) -> str:
        """The name of its samples, by which `name[]` asks for it."""
        return f"fencepost_{self.name}{'_total' * (self.made is CounterMetricFamily)}"


REQUESTS = _Described("requests", "Requests that were handled.", ("api",), CounterMetricFamily)
FAULTS = _Described("fault_hits", "Requests that a fault acted on.", ("fault",), CounterMetricFamily)
EVENTS = _Described("events", "Rows of the trace.", (), CounterMetricFamily)
VIOLATIONS = _Described("violations", "Invariants that did not hold.", (), CounterMetricFamily)
CONNECTIONS = _Described("connections", "Open connections of clients.")
BROKER_UP = _Described("broker_up", "1 if the broker runs.", ("broker",))
GROUP_MEMBERS = _Described("group_members", "Members of a group.", ("group",))
GROUP_EPOCH = _Described("group_epoch", "The epoch or generation of a group.", ("group",))
GROUP_STATE = _Described("group_state", "1 for the state that a group is in.", ("group", "state"))
GROUP_OFFSET = _Described("group_committed_offset", "The committed offset.", ("group", "topic", "partition"))
GROUP_LAG = _Described(
    "group_lag", "Records after the committed offset, up to the end.", ("group", "topic", "partition")
)
LOG_START = _Described("log_start_offset", "The first offset of a log.", ("topic", "partition"))
LOG_END = _Described("log_end_offset", "The offset after the last record.", ("topic", "partition"))

Samples = dict[_Described, list[tuple[tuple[str, ...], float]]]


def samples_of(endpoint: EmbeddedEndpoint, wanted: Set[str] = frozenset()) -> Samples:
    """Return all values, or those of the metrics with these names; call it on the brokers' loop."""
    cluster, observer = endpoint.brokers.cluster, endpoint.observer
    seq = observer.seq
    found: Samples = {
        REQUESTS: [((api_name(key),), number) for key, number in sorted(endpoint.faults.requests.items())],
        FAULTS: [((str(number),), rule.met) for number, rule in endpoint.faults.known("").items()],
        EVENTS: [((), seq)],
        VIOLATIONS: [((), len(observer.trace.violations))],
        CONNECTIONS: [((), len(endpoint.brokers.connections))],
        BROKER_UP: [((str(node.node_id),), node.node_id not in cluster.stopped) for node in cluster.nodes],
        **{each: [] for each in (GROUP_MEMBERS, GROUP_EPOCH, GROUP_STATE, GROUP_OFFSET, GROUP_LAG)},
        **{each: [] for each in (LOG_START, LOG_END)},
    }
    ends: dict[tuple[str, int], int] = {}
    for name, topic in cluster.image.by_name.items():
        logs = dict(cluster.logs_of(topic))
        for number in range(topic.partitions):
            log = logs.get(number)
            place = (name, str(number))
            ends[name, number] = 0 if log is None else log.high_watermark
            found[LOG_START].append((place, 0 if log is None else log.log_start_offset))
            found[LOG_END].append((place, ends[name, number]))
    for coordinator in endpoint.coordinators():
        for kind in coordinator.kinds:
            for group_id, group in kind.groups.items():
                found[GROUP_MEMBERS].append(((group_id,), len(group.members)))
                found[GROUP_EPOCH].append(((group_id,), kind.epoch(group)))
                found[GROUP_STATE].append(((group_id, str(group.state)), 1))
        for group_id in coordinator.offsets.group_ids:
            for topic_name, partitions in coordinator.offsets.topics(group_id).items():
                for number, value in partitions.items():
                    labels = (group_id, topic_name, str(number))
                    found[GROUP_OFFSET].append((labels, value.offset))
                    if (end := ends.get((topic_name, number))) is not None:
                        found[GROUP_LAG].append((labels, max(0, end - value.offset)))
    return {each: values for each, values in found.items() if not wanted or each.sample in wanted}


def exposition(samples: Samples, accept: str) -> tuple[bytes, str]:
    """Return values in a format that a scraper accepts, and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(samples))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Collected:
    """Values for the client library."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def describe(self) -> list[Metric]:
        """Return no names: each registry has these values alone."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics with their values."""
        for each, values in self._samples.items():
            family = each.made(f"fencepost_{each.name}", each.meaning, labels=each.labels)
            for labels, value in values:
                family.add_metric(labels, value)
            yield family
