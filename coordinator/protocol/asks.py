"""The response type of each request: a base class of requests, for the type checker alone."""

from __future__ import annotations

from typing import Generic, TypeVar

R_co = TypeVar("R_co", covariant=True)


class Asks(Generic[R_co]):
    """A request that gets a response of the type `R_co` at once."""

    __slots__ = ()


class AsksAndWaits(Generic[R_co]):
    """A request whose response of the type `R_co` may have to wait for other members."""

    __slots__ = ()
