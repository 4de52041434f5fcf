"""Observers of the proxy: what crossed it, and what was lost on the way."""

from __future__ import annotations

from fencepost.simulation.kernel.rules import Direction


class ProxyObserver:
    """Receives messages; an observer overrides the hooks that it needs.

    Each request ends in exactly one of: a response (`on_response`), a loss in one of the two directions, or,
    for a Produce with acks 0, in `on_request` alone. A request that the proxy keeps, to respond in the
    broker's stead or not at all, has no `on_request`; it ends in `on_response` or `on_loss` like others.
    Requests and responses are the messages of
    `coordinator.protocol` for the APIs of groups, else an `UnreadFrame`. `t_us` is the time of the loop's
    clock in microseconds.
    """

    def on_request(self, member: str, broker: str, request: object, t_us: int) -> None:
        """A request was handed to the broker's socket."""

    def on_response(self, member: str, broker: str, request: object, response: object, t_us: int) -> None:
        """A response was handed to the member's socket."""

    def on_loss(self, member: str, broker: str, direction: Direction, request: object, t_us: int) -> None:
        """A request did not reach the broker, or a response the member.

        A message that was spoiled is lost, even if the receiver makes something of it. So is the response to
        a request whose connection ends first.
        """
