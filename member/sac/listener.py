"""The callbacks of an application about its single active consumer, and those of an observer about the
machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from fencepost.member.sac.actions import SacCallback
from fencepost.member.sac.offsets import OffsetSpecification
from fencepost.member.sac.states import SacMemberEvent, SacMemberState

if TYPE_CHECKING:
    from fencepost.member.sac.consumer import SingleActiveConsumer


class SacListener:
    """The callbacks of an application; override the ones that matter. Each method may be plain or async.

    They are called one at a time, and never while the application works on a message.
    """

    def on_activated(self, consumer: SingleActiveConsumer) -> Any:
        """It is active from now on: return an `OffsetSpecification`, or None to start behind the stored
        offset.

        If nothing is stored it starts at the offset of the subscription. If this fails, or returns anything
        else, the connection is given up, so that another consumer gets its turn.
        """
        return None

    def on_stepping_down(self, consumer: SingleActiveConsumer) -> Any:
        """It has to stop. Store the processed offset: when this returns, another consumer may start."""

    def on_lost(self, consumer: SingleActiveConsumer) -> Any:
        """Its connection is lost: another consumer may have started already."""


class SacMachineObserver(Protocol):
    """Sees the machine's steps, for traces and judges."""

    def on_state(self, event: SacMemberEvent, source: SacMemberState, target: SacMemberState) -> None:
        """It moved along an arrow of its table."""

    def on_callback(self, kind: SacCallback, phase: str) -> None:
        """A callback reached `begin`, `end` or `raised`."""

    def on_answer(self, offset: OffsetSpecification) -> None:
        """The consumer answered a consumer update."""
