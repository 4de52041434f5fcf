"""What must never happen, checked after every event; and what must happen once faults end.

Each checker is an observer of the world over small pure parts, which unit tests feed by hand.
`catalogue` names every invariant; `suite` puts the checkers together.
"""

from fencepost.simulation.checkers.suite import all_checkers, real_checkers

__all__ = ("all_checkers", "real_checkers")
