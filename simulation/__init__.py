"""Groups under faults in virtual time: world, scenarios, checkers, trace, campaigns, command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fencepost.simulation.pipeline.notebook import Campaign

__all__ = ["Campaign"]


def __getattr__(name: str) -> Any:
    """Import what is asked for, and no more: a campaign needs the extra `fencepost[spark]`."""
    if name in __all__:
        from fencepost.simulation.pipeline.notebook import Campaign

        return Campaign
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
