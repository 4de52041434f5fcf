"""Controls of all of a Kafka, or of the part of it that a scope has."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from fencepost.simulation.embedded.faults import FaultInjector
from fencepost.simulation.embedded.lifecycle import Controls
from fencepost.simulation.embedded.settings import name_of
from fencepost.simulation.embedded.waiting import Waiting


class CallObserver(Protocol):
    """Sees the calls of a test."""

    @property
    def waiting(self) -> Waiting:
        """The callers that wait until something has happened."""

    def called(self, method: str, detail: str = "", *, group: str = "", state_to: str = "begin") -> None:
        """Note a call, or that what it asked for has met a request or has ended."""


class FaultyEndpoint(Protocol):
    """A server with faults between its clients and its brokers."""

    @property
    def observer(self) -> CallObserver:
        """Sees the calls of its controls."""

    @property
    def faults(self) -> FaultInjector:
        """The faults."""

    def check_broker(self, node_id: int) -> None:
        """Check that there is such a broker.

        :raises FencepostError: if not.
        """


F = TypeVar("F", bound=FaultyEndpoint)


class ScopedControls(Controls[F], Generic[F]):
    """Controls that a scope limits to what has its prefix."""

    # A `KafkaScope` replaces these: it sees only what has its prefix, and does nothing to the others.

    prefix = ""
    """The beginning of all names of topics and groups that these controls are about."""

    def _own(self, what: str, name: str, expected: str = "a name") -> str:
        """Return a name after checking it.

        :raises FencepostError: if it is not text, is blank, or belongs to others.
        """
        return name_of(what, name, expected)

    def _for_all(self, method: str) -> None:
        """Refuse a method that affects others.

        :raises FencepostError: in a scope.
        """

    def _called(self, method: str, detail: str = "", *, group: str = "", state_to: str = "begin") -> None:
        self.endpoint.observer.called(method, detail, group=group, state_to=state_to)
