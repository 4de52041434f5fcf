"""Kafka's group coordinator and its members: for tests, for simulation in virtual time, for real brokers.

This package is the public interface. It loads nothing before a name is used, and if a library is missing,
each name reports which extra it needs:

- Tests: `EmbeddedKafka`, `AsyncEmbeddedKafka`, `EmbeddedRabbitStream` (`fencepost[embedded]`).
- Your own programs in virtual time: `simulated`, `SimulatedWorld` (`fencepost[kafka,world]`).
- Simulation: `simulate`, `load`, `RunResult`; `Campaign` for many seeds on Spark (`fencepost[spark]`).
- Clients: `KIP848Consumer`, `StreamsApp` (`fencepost[kafka]`), `SingleActiveConsumer`.
- Errors: `FencepostError` if a user can correct it; `EnvironmentLacks` if the machine lacks something.
"""

from __future__ import annotations

TYPE_CHECKING = (
    False  # type checkers read it as True; the module `typing` would take most of the import's time
)
if TYPE_CHECKING:
    from typing import Any

    from fencepost.coordinator.codec.registry import ApiKey as ApiKey
    from fencepost.coordinator.config import GroupCoordinatorConfig as GroupCoordinatorConfig
    from fencepost.coordinator.journal.encoding import BrokenJournal as BrokenJournal
    from fencepost.coordinator.kinds import GroupMember as GroupMember
    from fencepost.coordinator.protocol.errors import EnvironmentLacks as EnvironmentLacks
    from fencepost.coordinator.protocol.errors import ErrorCode as ErrorCode
    from fencepost.coordinator.protocol.errors import FencepostError as FencepostError
    from fencepost.coordinator.protocol.errors import InconsistentRecord as InconsistentRecord
    from fencepost.coordinator.protocol.errors import ProtocolError as ProtocolError
    from fencepost.coordinator.server.brokers import Broker as Broker
    from fencepost.member.kafka.consumer import KIP848Consumer as KIP848Consumer
    from fencepost.member.kafka.errors import AuthenticationError as AuthenticationError
    from fencepost.member.kafka.streams import StreamsApp as StreamsApp
    from fencepost.member.rabbit.transport import RabbitTransport as RabbitTransport
    from fencepost.member.sac.consumer import ConsumerClosed as ConsumerClosed
    from fencepost.member.sac.consumer import SingleActiveConsumer as SingleActiveConsumer
    from fencepost.member.sac.listener import SacListener as SacListener
    from fencepost.member.sac.offsets import OffsetKind as OffsetKind
    from fencepost.member.sac.offsets import OffsetSpecification as OffsetSpecification
    from fencepost.member.sac.transport import SacSubscription as SacSubscription
    from fencepost.member.sac.transport import SubscriptionRefused as SubscriptionRefused
    from fencepost.member.sac.transport import UnreadableMessages as UnreadableMessages
    from fencepost.member.streams.application.settings import GlobalThread as GlobalThread
    from fencepost.member.streams.client_states import StreamClientState as StreamClientState
    from fencepost.member.streams.errors import IllegalStreamsState as IllegalStreamsState
    from fencepost.member.streams.errors import MissingSourceTopic as MissingSourceTopic
    from fencepost.member.streams.errors import StreamsError as StreamsError
    from fencepost.member.streams.errors import TaskAssignmentFailed as TaskAssignmentFailed
    from fencepost.member.streams.handler import (
        StreamThreadExceptionResponse as StreamThreadExceptionResponse,
    )
    from fencepost.member.streams.thread_states import StreamThreadState as StreamThreadState
    from fencepost.simulation.embedded.fault_controls import Fault as Fault
    from fencepost.simulation.embedded.fault_controls import FaultState as FaultState
    from fencepost.simulation.embedded.fault_rules import FaultAction as FaultAction
    from fencepost.simulation.embedded.groups import AsyncGroup as AsyncGroup
    from fencepost.simulation.embedded.groups import Group as Group
    from fencepost.simulation.embedded.kafka import AsyncEmbeddedKafka as AsyncEmbeddedKafka
    from fencepost.simulation.embedded.kafka import EmbeddedKafka as EmbeddedKafka
    from fencepost.simulation.embedded.logs import ReadRecord as ReadRecord
    from fencepost.simulation.embedded.rabbit import AsyncEmbeddedRabbitStream as AsyncEmbeddedRabbitStream
    from fencepost.simulation.embedded.rabbit import EmbeddedRabbitStream as EmbeddedRabbitStream
    from fencepost.simulation.embedded.rabbit_endpoint import StreamMessage as StreamMessage
    from fencepost.simulation.embedded.rabbit_groups import AsyncStreamGroup as AsyncStreamGroup
    from fencepost.simulation.embedded.rabbit_groups import StreamConsumer as StreamConsumer
    from fencepost.simulation.embedded.rabbit_groups import StreamGroup as StreamGroup
    from fencepost.simulation.embedded.scopes import KafkaScope as KafkaScope
    from fencepost.simulation.embedded.shadow import ShadowDiverged as ShadowDiverged
    from fencepost.simulation.failures.failure import failure_of as failure_of
    from fencepost.simulation.failures.failure import replay as replay
    from fencepost.simulation.failures.shrink import shrink as shrink
    from fencepost.simulation.kernel.loop import TooManyEvents as TooManyEvents
    from fencepost.simulation.kernel.observers import Violation as Violation
    from fencepost.simulation.lab.chaos.run import run_real as run_real
    from fencepost.simulation.lab.clusters.cluster import RealCluster as RealCluster
    from fencepost.simulation.lab.proxy.kafka_proxy import KafkaProxy as KafkaProxy
    from fencepost.simulation.pipeline.notebook import Campaign as Campaign
    from fencepost.simulation.run import RunResult as RunResult
    from fencepost.simulation.run import simulate as simulate
    from fencepost.simulation.scenarios.load import load as load
    from fencepost.simulation.trace.parquet import ParquetTrace as ParquetTrace
    from fencepost.simulation.world.entry import FailureGone as FailureGone
    from fencepost.simulation.world.entry import SimulationFailed as SimulationFailed
    from fencepost.simulation.world.entry import run_simulated as run_simulated
    from fencepost.simulation.world.entry import simulated as simulated
    from fencepost.simulation.world.http_stub import HttpRequest as HttpRequest
    from fencepost.simulation.world.http_stub import HttpStub as HttpStub
    from fencepost.simulation.world.programs import Program as Program
    from fencepost.simulation.world.run import WorldResult as WorldResult
    from fencepost.simulation.world.world import SimulatedWorld as SimulatedWorld

    __version__: str
    """The version of the installed distribution."""

_MODULES = {
    "ApiKey": "coordinator.codec.registry",
    "AsyncEmbeddedKafka": "simulation.embedded.kafka",
    "AsyncEmbeddedRabbitStream": "simulation.embedded.rabbit",
    "AsyncGroup": "simulation.embedded.groups",
    "AsyncStreamGroup": "simulation.embedded.rabbit_groups",
    "AuthenticationError": "member.kafka.errors",
    "BrokenJournal": "coordinator.journal.encoding",
    "Broker": "coordinator.server.brokers",
    "Campaign": "simulation.pipeline.notebook",
    "ConsumerClosed": "member.sac.consumer",
    "EmbeddedKafka": "simulation.embedded.kafka",
    "EmbeddedRabbitStream": "simulation.embedded.rabbit",
    "EnvironmentLacks": "coordinator.protocol.errors",
    "ErrorCode": "coordinator.protocol.errors",
    "FailureGone": "simulation.world.entry",
    "Fault": "simulation.embedded.fault_controls",
    "FaultAction": "simulation.embedded.fault_rules",
    "FaultState": "simulation.embedded.fault_controls",
    "FencepostError": "coordinator.protocol.errors",
    "GlobalThread": "member.streams.application.settings",
    "Group": "simulation.embedded.groups",
    "GroupCoordinatorConfig": "coordinator.config",
    "GroupMember": "coordinator.kinds",
    "HttpRequest": "simulation.world.http_stub",
    "HttpStub": "simulation.world.http_stub",
    "IllegalStreamsState": "member.streams.errors",
    "InconsistentRecord": "coordinator.protocol.errors",
    "KIP848Consumer": "member.kafka.consumer",
    "KafkaProxy": "simulation.lab.proxy.kafka_proxy",
    "KafkaScope": "simulation.embedded.scopes",
    "MissingSourceTopic": "member.streams.errors",
    "OffsetKind": "member.sac.offsets",
    "OffsetSpecification": "member.sac.offsets",
    "ParquetTrace": "simulation.trace.parquet",
    "Program": "simulation.world.programs",
    "ProtocolError": "coordinator.protocol.errors",
    "RabbitTransport": "member.rabbit.transport",
    "ReadRecord": "simulation.embedded.logs",
    "RealCluster": "simulation.lab.clusters.cluster",
    "RunResult": "simulation.run",
    "SacListener": "member.sac.listener",
    "SacSubscription": "member.sac.transport",
    "ShadowDiverged": "simulation.embedded.shadow",
    "SimulatedWorld": "simulation.world.world",
    "SimulationFailed": "simulation.world.entry",
    "SingleActiveConsumer": "member.sac.consumer",
    "StreamClientState": "member.streams.client_states",
    "StreamConsumer": "simulation.embedded.rabbit_groups",
    "StreamGroup": "simulation.embedded.rabbit_groups",
    "StreamMessage": "simulation.embedded.rabbit_endpoint",
    "StreamThreadExceptionResponse": "member.streams.handler",
    "StreamThreadState": "member.streams.thread_states",
    "StreamsApp": "member.kafka.streams",
    "StreamsError": "member.streams.errors",
    "SubscriptionRefused": "member.sac.transport",
    "TaskAssignmentFailed": "member.streams.errors",
    "TooManyEvents": "simulation.kernel.loop",
    "UnreadableMessages": "member.sac.transport",
    "Violation": "simulation.kernel.observers",
    "WorldResult": "simulation.world.run",
    "failure_of": "simulation.failures.failure",
    "load": "simulation.scenarios.load",
    "replay": "simulation.failures.failure",
    "run_real": "simulation.lab.chaos.run",
    "run_simulated": "simulation.world.entry",
    "shrink": "simulation.failures.shrink",
    "simulate": "simulation.run",
    "simulated": "simulation.world.entry",
}
"""The module of each public name. tests/architecture compares it with the imports above."""

__all__ = [*_MODULES, "__version__"]  # noqa: PLE0604  # names, which the table has as text


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("fencepost")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        found = globals()[name] = getattr(import_module(f"fencepost.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        from fencepost.simulation.cli.entry import EXTRAS

        library = (error.name or "").partition(".")[0]
        if library not in EXTRAS:
            raise
        needed = f"{name} needs {library}, which is not installed: pip install 'fencepost[{EXTRAS[library]}]'"
        raise ModuleNotFoundError(needed, name=library) from error
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
