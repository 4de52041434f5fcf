"""What a mutant is: a historic bug, what it replaces, and who must catch it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NamedTuple, TypeAlias
from unittest import mock

NOBODY: Final = "nobody's"
"""The `bug` of a mutant that no one is known to have had."""


class Patch(NamedTuple):
    """One replacement: `replace` takes the original attribute of `owner` and answers the faulty one."""

    owner: Any
    attribute: str
    replace: Callable[[Any], Any]

    @property
    def original(self) -> Any:
        """What is replaced.

        :raises KeyError: if a class does not have it (any more).
        :raises AttributeError: if a module does not.
        """
        return (
            vars(self.owner)[self.attribute]
            if isinstance(self.owner, type)
            else getattr(self.owner, self.attribute)
        )


Original: TypeAlias = Callable[..., Any]
"""A function as it is without the bug."""


def instead_of(owner: Any, attribute: str, faulty: Callable[..., Any]) -> Patch:
    """Return the patch that makes each call of a function, or of a property, a call of `faulty`.

    `faulty` takes the original function in front of the call's own arguments.
    """

    def replace(original: Any) -> Any:
        is_property = isinstance(original, property)
        function = original.fget if is_property else original

        def call(*arguments: Any, **named: Any) -> Any:
            return faulty(function, *arguments, **named)

        return property(call) if is_property else call

    return Patch(owner, attribute, replace)


class Mutant(NamedTuple):
    """One bug that somebody really had."""

    name: str
    bug: str
    """Where it is known from: an issue of Kafka's, or a pull request or commit of another project."""
    summary: str
    expected: tuple[str, ...]
    """Invariants that report it, each within twenty seeds; the first one catches it."""
    scenarios: tuple[str, ...]
    """Scenarios of the library in which it can show; seeds go round them."""
    patches: tuple[Patch, ...]
    overrides: tuple[str, ...] = ()
    """Settings of those scenarios that make the bug's circumstances more frequent."""

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Runs inside have the bug."""
        with ExitStack() as stack:
            for patch in self.patches:
                faulty = patch.replace(patch.original)
                stack.enter_context(mock.patch.object(patch.owner, patch.attribute, faulty))
            yield
