"""Suggestions for unknown names. Every message that suggests a name gets it here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from typing import Final

_SLIP: Final = 0.85
"""The likeness, 0 to 1, from which on a difference counts as a slip of the keyboard."""
_LIKE: Final = 0.6
"""The least likeness of a name that is suggested."""
_FEWEST_LETTERS: Final = 3
"""The fewest letters that are looked for inside of names: fewer are part of too many."""
_SHOWN: Final = 3

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def suggestion(given: object, names: Iterable[str], otherwise: str, *, usual: Sequence[str] = ()) -> str:
    """Return `did you mean X?`, or `otherwise` if no name is like the one that was given."""
    near = nearest(given, names, usual=usual)
    if not near:
        return otherwise
    *others, last = near
    return f"did you mean {', '.join(others)} or {last}?" if others else f"did you mean {last}?"


def nearest(given: object, names: Iterable[str], *, usual: Sequence[str] = ()) -> list[str]:
    """Return the likeliest names first, at most three.

    If a name has the same words in another spelling, it is the only one. Otherwise names of `usual` that
    contain the given one come first, then a name with a typing error. After these follow other names that
    contain the given one, and then the most similar name.
    """
    if not isinstance(given, str) or not (words := _words(given)):
        return []
    known = {name: _words(name) for name in names}
    likeness = {name: _likeness(_joined(words), _joined(its)) for name, its in known.items()}
    best = max(known, key=likeness.__getitem__, default="")
    if not best or likeness[best] == 1:
        return [best] if best else []
    by_likeness = sorted(known, key=likeness.__getitem__, reverse=True)
    parts = [name for name in by_likeness if _has_part(known[name], "".join(words))]
    whole = [name for name in by_likeness if _has_words(known[name], words)] or parts
    meant = [name for name in usual if name in whole or name in parts]
    if not meant and likeness[best] >= _SLIP:
        return [best]
    return list(dict.fromkeys([*meant, *whole]))[:_SHOWN] or [best] * (likeness[best] >= _LIKE)


def _words(name: str) -> list[str]:
    """Return the words of a name: the same for `FENCED_MEMBER_EPOCH` and `FencedMemberEpoch`."""
    return [word.lower() for word in _WORD.findall(name)]


def _joined(words: Sequence[str]) -> str:
    return "_".join(words)


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other).ratio()


def _has_words(words: Sequence[str], given: Sequence[str]) -> bool:
    """True if all these words are among the name's, in this order."""
    left = iter(words)
    return all(word in left for word in given)


def _has_part(words: Sequence[str], given: str) -> bool:
    """True if some words of the name, joined, begin with this, or equal it except for a slip."""
    if len(given) < _FEWEST_LETTERS:
        return False
    for first in range(len(words)):
        if "".join(words[first:]).startswith(given):
            return True
        for end in range(first + 1, len(words) + 1):
            if _likeness(given, "".join(words[first:end])) >= _SLIP:
                return True
    return False
