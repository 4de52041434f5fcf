"""Libraries that leave a world, and the calls with which they would: each is refused before it does harm.

Their C code has sockets and threads of its own, which no substitute reaches, or they wait for sockets, which
only programs in processes of their own may do. Other libraries are refused at the call of Python that has no
place in a run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final, NamedTuple

_C_CODE: Final = "its C library has threads and sockets of its own"
_BLOCKS: Final = "it waits for sockets in the only thread there is"
_PROCESSES: Final = "another process has no virtual time"
_OWN_LOOP: Final = "it has an event loop of its own"
_KAFKA: Final = "aiokafka or fencepost.KIP848Consumer; this client runs on EmbeddedKafka, in real time"
_NAMED: Final = 'the program by its name, as "shop.main:run", in whose process this client runs'
_WORKERS: Final = "threads, or call world.process() once for each worker"
_SUBSTITUTE: Final = "a substitute for the other side in the test"


class ForeignCalls(NamedTuple):
    """Calls of one module that lead out of a world."""

    names: tuple[str, ...]
    """Names of functions and classes, or of methods behind their class."""
    reason: str
    instead: str


_FOREIGN: Final[dict[str, ForeignCalls]] = {
    "confluent_kafka": ForeignCalls(
        ("Consumer", "Producer", "DeserializingConsumer", "SerializingProducer"), _C_CODE, _KAFKA
    ),
    "confluent_kafka.admin": ForeignCalls(("AdminClient",), _C_CODE, _KAFKA),
    "grpc._cython.cygrpc": ForeignCalls(
        ("AioChannel", "AioServer", "Channel", "Server"), _C_CODE, _SUBSTITUTE
    ),
    "kafka.admin.client": ForeignCalls(("KafkaAdminClient.__init__",), _BLOCKS, _NAMED),
    "kafka.consumer.group": ForeignCalls(("KafkaConsumer.__init__",), _BLOCKS, _NAMED),
    "kafka.producer.kafka": ForeignCalls(("KafkaProducer.__init__",), _BLOCKS, _NAMED),
    "multiprocessing.process": ForeignCalls(("BaseProcess.start",), _PROCESSES, _WORKERS),
    "multiprocessing.queues": ForeignCalls(
        ("Queue.__init__", "SimpleQueue.__init__", "JoinableQueue.__init__"), _PROCESSES, "queue.Queue"
    ),
    "psycopg.connection": ForeignCalls(("Connection.connect",), _C_CODE, _SUBSTITUTE),
    "psycopg.connection_async": ForeignCalls(("AsyncConnection.connect",), _C_CODE, _SUBSTITUTE),
    "psycopg2": ForeignCalls(("connect",), _C_CODE, _SUBSTITUTE),
    "pycurl": ForeignCalls(("Curl", "CurlMulti"), _C_CODE, "httpx or aiohttp"),
    "trio": ForeignCalls(("run",), _OWN_LOOP, "asyncio"),
    "trio.lowlevel": ForeignCalls(("start_guest_run",), _OWN_LOOP, "asyncio"),
    "uvloop": ForeignCalls(("new_event_loop",), _C_CODE, "the event loop that runs"),
    "zmq.sugar.context": ForeignCalls(("Context.__init__",), _C_CODE, _SUBSTITUTE),
}
"""The calls by the module that has them."""


class ForeignCall(NamedTuple):
    """One such call that can be replaced."""

    owner: Any
    """The module or the class that has it."""
    name: str
    label: str
    """The call as a message names it."""
    reason: str
    instead: str


def foreign_calls(module: ModuleType, *, may_block: bool) -> Iterator[ForeignCall]:
    """Yield the calls of a loaded module that lead out of a world."""
    calls = _FOREIGN.get(module.__name__)
    if calls is None or (may_block and calls.reason is _BLOCKS):
        return
    library = module.__name__.partition(".")[0]
    for each in calls.names:
        kind, _, name = each.rpartition(".")
        owner = getattr(module, kind, None) if kind else module
        if owner is not None and hasattr(owner, name):
            label = f"{library}.{each.removesuffix('.__init__')}()"
            yield ForeignCall(owner, name, label, calls.reason, calls.instead)


class ForeignImports:
    """A finder of modules that calls back when one with foreign calls, or numpy's generator, has been loaded.

    A program may import a library in the middle of a run, and use it at once.
    """

    def __init__(self, loaded: Callable[[ModuleType], object]) -> None:
        self._loaded = loaded

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return what other finders find, for the modules to watch."""
        if name not in _FOREIGN and name != "numpy.random":
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    self._watch(spec.loader)
                return spec
        return None

    def _watch(self, loader: Any) -> None:
        load = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            self._loaded(module)

        loader.exec_module = exec_module
