"""The definition of a mutant: a historic bug, the function that it replaces, and the judges that must catch
it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar
from unittest import mock

UNREPORTED: Final = "no report"
"""The `bug` of a mutant that no project is known to have had."""
CHURN: Final = ("scale-up-and-down", "swarm", "rolling-deploy", "crash-and-return")
LOSSES: Final = ("lossy-network", "swarm", "partitioned-members", "coordinator-failover")


Original: TypeAlias = Callable[..., Any]
"""The function without the bug."""

F = TypeVar("F", bound=Callable[..., Any])


class CodeChange(Protocol):
    """One place of the code that differs while a mutant is applied."""

    @property
    def original(self) -> Any:
        """The attribute or the code without the bug.

        :raises LookupError: if it is not there (any more).
        """

    def applied(self) -> AbstractContextManager[Any]:
        """Run the block with the bug."""


class Replacement(NamedTuple):
    """One attribute of a class or a module, and its replacement while a mutant is applied."""

    owner: Any
    attribute: str
    faulty: Callable[..., Any]

    @property
    def original(self) -> Any:
        """The attribute that is replaced.

        :raises KeyError: if a class does not have it (any more).
        :raises AttributeError: if a module does not.
        """
        return (
            vars(self.owner)[self.attribute]
            if isinstance(self.owner, type)
            else getattr(self.owner, self.attribute)
        )

    def applied(self) -> AbstractContextManager[Any]:
        """Run the block with the faulty attribute."""
        return mock.patch.object(self.owner, self.attribute, self.made())

    def made(self) -> Any:
        """The faulty attribute."""
        original = self.original
        if not callable(original) and not isinstance(original, property | staticmethod):
            return self.faulty(original)
        function, faulty = original, self.faulty
        if isinstance(original, property):
            function = original.fget
        elif isinstance(original, staticmethod):
            function = original.__func__

        def call(*arguments: Any, **named: Any) -> Any:
            return faulty(function, *arguments, **named)

        if isinstance(original, property):
            return property(call)
        return staticmethod(call) if isinstance(original, staticmethod) else call


def instead_of(owner: Any, attribute: str, faulty: Callable[..., Any]) -> Replacement:
    """Return a replacement that turns each call of a function, or of a property, into a call of `faulty`.

    `faulty` takes the original function before the call's own arguments. An attribute that can't be called,
    such as a table, is replaced by the result of `faulty`.
    """
    return Replacement(owner, attribute, faulty)


class Mutant(NamedTuple):
    """One known bug."""

    name: str
    bug: str
    """The source of the bug: an issue of Kafka's, or a pull request or commit of another project."""
    summary: str
    expected: tuple[str, ...]
    """Invariants that report it, each within twenty seeds; the first one catches it."""
    scenarios: tuple[str, ...]
    """Scenarios of the library in which it can show; seeds use them in turn."""
    replacements: tuple[CodeChange, ...]
    overrides: tuple[str, ...] = ()
    """Settings of those scenarios that make the bug's circumstances more frequent."""
    memory: tuple[dict[Any, Any], ...] = ()
    """State that the faulty functions keep for objects that have no place for it; empty at the beginning."""

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Put the bug back for runs inside the block."""
        for kept in self.memory:
            kept.clear()
        with ExitStack() as stack:
            for each in self.replacements:
                stack.enter_context(each.applied())
            yield


class Mutants(list[Mutant]):
    """The known bugs of one area, in the order of the docs."""

    def bug(
        self,
        name: str,
        expected: str,
        scenarios: tuple[str, ...],
        target: tuple[Any, str],
        *,
        source: str = UNREPORTED,
        also: tuple[Replacement, ...] = (),
        overrides: tuple[str, ...] = (),
        memory: tuple[dict[Any, Any], ...] = (),
    ) -> Callable[[F], F]:
        """Return a decorator of the function that replaces the `target`, an owner's attribute.

        The mutant's summary is the function's docstring. `expected` has spaces between the invariants.
        """

        def add(faulty: F) -> F:
            summary = " ".join((faulty.__doc__ or "").split())
            replacements = (instead_of(*target, faulty), *also)
            names = tuple(expected.split())
            self.append(Mutant(name, source, summary, names, scenarios, replacements, overrides, memory))
            return faulty

        return add
