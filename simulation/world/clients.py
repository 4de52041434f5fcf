"""Points in client libraries at which a nemesis disturbs programs: polls, rebalance callbacks, producers.

The methods of aiokafka, of kafka-python and of `KIP848Consumer` are wrapped while a run lasts. Outside of a
process of a world they do what the originals do.

anyio, aiohttp and servers such as uvicorn iterate over sets of objects that hash by their address. While a
run lasts these objects hash by a counter, so that a seed gives the same run each time.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import itertools
import time
import weakref
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final

from fencepost.simulation.world.places import caller_place
from fencepost.simulation.world.processes import PROCESS, WorldProcess

_hashes: dict[int, int] = {}
"""The hashes of objects that were made in this run, by their addresses."""

_uses: list[Iterator[int]] = []
"""The counter of protocols that were hashed in this run."""
_NUMBER: Final = "_fencepost_number"
_OWN: Final = frozenset({"builtins", "fencepost", "asyncio", "_asyncio", "abc", "weakref"})
"""Packages whose sets decide about no order in a program."""


def set_members() -> Iterator[tuple[type, str, Any]]:
    """Yield what lets the members of libraries' sets hash by a counter; it begins again."""
    from anyio._backends._asyncio import CancelScope

    _hashes.clear()
    _uses[:] = [itertools.count(1)]
    kinds: list[type] = [CancelScope]
    if find_spec("aiohttp") is not None:
        from aiohttp.client_proto import ResponseHandler
        from aiohttp.connector import _TransportPlaceholder  # in the same sets, until the connection is open

        kinds += [ResponseHandler, _TransportPlaceholder]
    for kind in kinds:
        yield kind, "__init__", _counted(kind.__init__)  # type: ignore[misc]
        yield kind, "__hash__", _hash_by_number
    yield asyncio.BaseProtocol, "__hash__", _hash_by_use


def _counted(original: Any) -> Any:
    @functools.wraps(original)
    def begin(self: Any, *args: Any, **options: Any) -> None:
        loop: Any = asyncio._get_running_loop()
        if loop is not None and hasattr(loop, "hashed"):
            loop.hashed += 1
            _hashes[id(self)] = loop.hashed
        else:
            _hashes.pop(id(self), None)
        original(self, *args, **options)

    return begin


def _hash_by_number(self: object) -> int:
    found = _hashes.get(id(self))
    return object.__hash__(self) if found is None else found


def _hash_by_use(self: Any) -> int:
    """Return the hash of a protocol: a number that it gets when it is first hashed in a run.

    Servers such as uvicorn keep the protocols of their connections in sets. Subclasses need not call the
    `__init__` of their base, which has none.
    """
    attributes = getattr(self, "__dict__", None)
    if attributes is None:
        return object.__hash__(self)
    if _NUMBER not in attributes:
        is_of_run = hasattr(asyncio._get_running_loop(), "hashed")
        attributes[_NUMBER] = next(_uses[-1]) if is_of_run else object.__hash__(self)
    number: int = attributes[_NUMBER]
    return number


def kinds_in_sets() -> Iterator[str]:
    """Yield the names of classes whose objects are in sets now, and hash by their addresses."""
    for each in gc.get_objects():
        if isinstance(each, set | frozenset) and len(each) > 1:
            for member in tuple(each):
                kind: Any = type(member() if isinstance(member, weakref.ref) else member)
                if kind.__hash__ is object.__hash__ and kind.__module__.partition(".")[0] not in _OWN:
                    yield f"{kind.__module__}.{kind.__qualname__}"


def client_methods() -> Iterator[tuple[type, str, Any]]:
    """Yield each attribute of a client that has a substitute: its class, its name and the substitute."""
    if find_spec("aiokafka") is None:
        return
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.consumer.subscription_state import SubscriptionState
    from aiokafka.producer.message_accumulator import BatchBuilder
    from aiokafka.producer.transaction_manager import TransactionManager

    from fencepost.member.kafka.consumer import KIP848Consumer
    from fencepost.member.kafka.listener import ApplicationListener

    yield AIOKafkaProducer, "_PRODUCER_CLIENT_ID_SEQUENCE", 0  # it goes into client ids
    yield BatchBuilder, "append", _stamped(BatchBuilder.append)
    yield TransactionManager, "__init__", _before(TransactionManager.__init__, _note_id)
    yield SubscriptionState, "listener", _disturbed_listener("_listener", blocks=False)
    yield ApplicationListener, "_call", _disturbed_call(ApplicationListener._call)
    for consumer in (AIOKafkaConsumer, KIP848Consumer):
        yield consumer, "__init__", _before(consumer.__init__, _note_group)
        yield consumer, "commit", _before(consumer.commit, _note_place)
        for name in ("getone", "getmany"):
            yield consumer, name, _busy_before(getattr(consumer, name))
    yield KIP848Consumer, "__anext__", _busy_before(KIP848Consumer.__anext__)


def blocking_client_methods(module: ModuleType) -> Iterator[tuple[type, str, Any]]:
    """Yield the substitutes for kafka-python's blocking methods in this module."""
    found = vars(module)
    if module.__name__ == "kafka.producer.kafka" and (manager := found.get("TransactionManager")) is not None:
        yield manager, "__init__", _before(manager.__init__, _note_id)
    if module.__name__ == "kafka.consumer.group":
        consumer = found["KafkaConsumer"]
        name = "rebalance_listener"
        yield found["SubscriptionState"], name, _disturbed_listener(name, blocks=True)
        yield consumer, "__init__", _before(consumer.__init__, _note_group)
        for name in ("commit", "commit_async"):
            yield consumer, name, _before(getattr(consumer, name), _note_place)
        yield consumer, "poll", _before(consumer.poll, _be_busy)


def _stamped(original: Any) -> Any:
    """Give records of aiokafka's producer their time: its C code asks the machine for it."""

    def append(self: Any, *, timestamp: int | None, **options: Any) -> Any:
        if timestamp is None:
            timestamp = int(time.time() * 1000)
        return original(self, timestamp=timestamp, **options)

    return append


def _before(original: Any, act: Callable[..., object]) -> Any:
    """Let a method of a client do something first, in a process of a world, which gets its arguments too."""

    @functools.wraps(original)
    def method(self: Any, *args: Any, **options: Any) -> Any:
        process = PROCESS.get()
        if process is not None:
            act(process, *args, **options)
        return original(self, *args, **options)

    return method


def _note_id(process: WorldProcess, transactional_id: str | None = None, *_: Any, **__: Any) -> None:
    """Note the transactional ids of a process, which another producer may take over."""
    if transactional_id is not None:
        process.transactional_ids[transactional_id] = None


def _note_group(process: WorldProcess, *_: Any, group_id: str | None = None, **__: Any) -> None:
    """Note the groups that a process is about to join."""
    if group_id is not None:
        process.group_ids[group_id] = None


def _note_place(process: WorldProcess, *_: Any, **__: Any) -> None:
    """Note the line that commits."""
    process.commit_place = caller_place(2)


def _be_busy(process: WorldProcess, *_: Any, **__: Any) -> None:
    """Let a program that blocks work on its last batch for longer before it polls again."""
    if process.busy_until_us:
        time.sleep(_taken_work_s(process))


def _busy_before(original: Any) -> Any:
    """Let a program work on its last batch for longer before it polls again."""

    async def poll(self: Any, *args: Any, **options: Any) -> Any:
        process = PROCESS.get()
        if process is not None and process.busy_until_us:
            await _work_on(process)
        return await original(self, *args, **options)

    poll.__name__, poll.__qualname__, poll.__doc__ = (
        original.__name__,
        original.__qualname__,
        original.__doc__,
    )
    return poll


async def _work_on(process: WorldProcess) -> None:
    await asyncio.sleep(_taken_work_s(process))


def _taken_work_s(process: WorldProcess) -> float:
    """Return for how many seconds the last batch takes longer; 0 the next time."""
    until_us, process.busy_until_us = process.busy_until_us, 0
    return max(0, until_us - process.host.loop.here_us) / 1e6


class _DisturbedListener:
    """The listener of an application, whose next callback takes longer or raises."""

    def __init__(self, listener: Any, process: WorldProcess, *, blocks: bool) -> None:
        self._listener = listener
        self._process = process
        self._blocks = blocks

    def __repr__(self) -> str:
        return repr(self._listener)

    def __getattr__(self, name: str) -> Any:
        callback = getattr(self._listener, name)
        if not self._blocks:
            return functools.partial(_disturbed, self._process, callback)

        def call(partitions: Any) -> Any:
            takes_s, fails = _taken_disturbance(self._process)
            time.sleep(takes_s)
            _fail_if(fails)
            return callback(partitions)

        async def call_and_wait(partitions: Any) -> None:
            from kafka.net.selector import KernelEvent  # its sleep lets the client's loop go on

            takes_s, fails = _taken_disturbance(self._process)
            await KernelEvent("_sleep", takes_s)
            _fail_if(fails)
            await callback(partitions)

        return call_and_wait if inspect.iscoroutinefunction(callback) else call


def _disturbed_listener(attribute: str, *, blocks: bool) -> property:
    """Return the listener of a subscription, which a client keeps under that name."""

    def listener(self: Any) -> Any:
        process, found = PROCESS.get(), vars(self).get(attribute)
        if found is None or process is None or not process.callback_is_disturbed:
            return found
        return _DisturbedListener(found, process, blocks=blocks)

    return property(listener, lambda self, given: vars(self).update({attribute: given}))


def _disturbed_call(original: Any) -> Any:
    """Wrap the calls of a `KIP848Consumer` to its listener."""

    def _call(self: Any, name: str, partitions: Any) -> Any:
        process = PROCESS.get()
        if process is None or self._listener is None or not process.callback_is_disturbed:
            return original(self, name, partitions)
        return _disturbed(process, lambda given: original(self, name, given), partitions)

    return _call


async def _disturbed(process: WorldProcess, callback: Callable[[Any], Any], partitions: Any) -> None:
    takes_s, fails = _taken_disturbance(process)
    if takes_s:
        await asyncio.sleep(takes_s)
    _fail_if(fails)
    result = callback(partitions)
    if inspect.isawaitable(result):
        await result


def _taken_disturbance(process: WorldProcess) -> tuple[float, bool]:
    """Return for how many seconds the callback takes longer, and true if it fails; nothing the next time."""
    takes_us, process.callback_takes_us = process.callback_takes_us, 0
    fails, process.callback_fails = process.callback_fails, False
    return takes_us / 1e6, fails


def _fail_if(fails: bool) -> None:
    if fails:
        raise RuntimeError("the fault callback-error lets this rebalance callback fail")
