"""Places in a user's code, for messages: which line of a program is meant, and through which library."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any, Final

from fencepost.simulation.kernel.loop import OutsideWorld, VirtualLoop
from fencepost.simulation.world.folder import started_in

_OWN: Final = __name__.partition(".")[0]
_LOOP: Final = VirtualLoop._run_once.__code__
"""The code that calls all callbacks."""
_FOLDERS: Final = ("site-packages", "dist-packages")
"""Folders of installed libraries."""
BLOCKS: Final = "it would block the only thread there is"
"""Why a call is refused, see `refusal`."""


def stack_of(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames of the callback that runs, innermost first."""
    while frame is not None and frame.f_code is not _LOOP:
        yield frame
        frame = frame.f_back


def frames_of(coroutine: Any) -> list[FrameType]:
    """Return the frames of a coroutine that waits, innermost first."""
    found: list[FrameType] = []
    while coroutine is not None:
        for prefix, awaited in (("cr", "cr_await"), ("ag", "ag_await"), ("gi", "gi_yieldfrom")):
            if hasattr(coroutine, awaited):
                if (frame := getattr(coroutine, f"{prefix}_frame")) is not None:
                    found.append(frame)
                coroutine = getattr(coroutine, awaited)
                break
        else:
            break
    return found[::-1]


def place_in(frames: Iterable[FrameType]) -> str:
    """Return the innermost place outside of Python and fencepost; for a library's, the program's line too.

    The text is empty if there is no such place.
    """
    return _place((each.f_globals, each.f_code, each.f_lineno) for each in frames)


_CALLERS: Final[dict[tuple[CodeType, int], str]] = {}
"""Places by the line that called into fencepost."""


def user_lines(frames: Iterable[FrameType]) -> list[str]:
    """Return the places of these frames that are the user's, outermost first; of a library's, the innermost.

    A library's place is left out if no line of the user is among them.
    """
    found: list[str] = []
    library = ""
    for frame in frames:
        place = place_in([frame])
        if not place:
            continue
        if _in_library(frame.f_code.co_filename):
            library = library or place
        else:
            found.insert(0, place)
    return [*found, library] if found and library else found


def caller_place(depth: int) -> str:
    """Return a place in the calls that led here: 0 is in the function that asks, 1 in its caller.

    Each line is looked up once, since records are done often.
    """
    frame = sys._getframe(depth + 1)
    key = frame.f_code, frame.f_lineno
    if (found := _CALLERS.get(key)) is None:
        found = _CALLERS[key] = place_in(stack_of(frame))
    return found


def is_of_user(module: Any) -> bool:
    """Return true if a loaded module is part of the user's code: not of Python, a library or fencepost."""
    name, file = str(module.__name__).partition(".")[0], getattr(module, "__file__", None)
    if name == _OWN or name in sys.stdlib_module_names or not isinstance(file, str):
        return False
    return not _in_library(file)


def user_place(frame: FrameType | None) -> str:
    """Return the place of the code that asks, if it is the user's; "" if a library asks."""
    while frame is not None:
        module = _package_of(frame.f_globals)
        if module not in (_OWN, "time_machine") and module not in sys.stdlib_module_names:
            return "" if _in_library(frame.f_code.co_filename) else place_in([frame])
        frame = frame.f_back
    return ""


def importing_place(frame: FrameType | None) -> str:
    """Return the line of the user's module whose import asks, also through a library; "" for a library's.

    A library that is called by the user's module works for one process, so what it asks for counts.
    """
    while frame is not None:
        module = _package_of(frame.f_globals)
        if frame.f_code.co_name == "<module>" and module not in sys.stdlib_module_names:
            return "" if _in_library(frame.f_code.co_filename) else place_in([frame])
        frame = frame.f_back
    return ""


def refusal(call: str, reason: str, instead: str) -> OutsideWorld:
    """Return the error of a call that has no place in a run. It names the line that made the call."""
    place = place_in(stack_of(sys._getframe(1)))
    called = f" (called at {place})" if place else ""
    return OutsideWorld(f"{call} can't run in a simulated world: {reason}{called}. Use {instead}")


def place_of(function: Any) -> str:
    """Return the place of a function, in the same way."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(getattr(function, "__func__", function))
    if not isinstance(function, FunctionType):
        return ""
    return _place([(function.__globals__, function.__code__, function.__code__.co_firstlineno)])


def _place(lines: Iterable[tuple[dict[str, Any], CodeType, int]]) -> str:
    library = ""
    for names, code, line in lines:
        module = _package_of(names)
        if module == _OWN or module in sys.stdlib_module_names:
            continue
        inside = _in_library(code.co_filename)
        if not inside:
            here = f"{_shown(code.co_filename)}:{line} in {code.co_qualname}"
            return f"{here}, by {library}" if library else here
        if not library:
            library = f"the library {module} ({inside}:{line})"
    return library


def _package_of(names: dict[str, Any]) -> str:
    """Return the package of the code with these global names, also if it runs by `python -m`."""
    spec = names.get("__spec__")
    name = names.get("__name__", "") if spec is None else spec.name
    return str(name).partition(".")[0]


def _in_library(file: str) -> str:
    """Return the path of a library's file behind the folder of libraries; "" for other files."""
    parts = file.split(os.sep)
    for folder in _FOLDERS:
        if folder in parts:
            return os.sep.join(parts[parts.index(folder) + 1 :])
    return ""


def _shown(file: str) -> str:
    relative = os.path.relpath(file, started_in()) if os.path.isabs(file) else file
    return file if relative.startswith(os.pardir) else relative
