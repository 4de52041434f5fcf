"""Controls of all of a Kafka, or of the part of it that a scope has."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from fencepost.simulation.embedded.lifecycle import Controls
from fencepost.simulation.embedded.settings import name_of

if TYPE_CHECKING:
    from fencepost.simulation.embedded.endpoint import EmbeddedEndpoint

    Running: TypeAlias = Controls[EmbeddedEndpoint]
else:
    Running = Controls


class ScopedControls(Running):
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
