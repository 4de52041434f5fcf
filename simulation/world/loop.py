"""The virtual loop with asyncio's network: the transports and streams are asyncio's own.

asyncio's selector loop needs three things of a system: sockets that do not block, readiness, and time.
Here the sockets are virtual, and readiness is a callback in the queue of the loop. Everything above them
(transports, flow control, half-close, servers, `sock_*` methods) is the code of the standard library, so
it behaves as it does in production.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import signal
import sys
from asyncio import events, selector_events
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVarTuple, Unpack

from fencepost.simulation.kernel.loop import OutsideWorld, VirtualLoop, first_us
from fencepost.simulation.world.places import place_in, refusal, stack_of
from fencepost.simulation.world.processes import (
    PROCESS,
    ProcessHandle,
    ProcessTimer,
    SignalHandler,
    WorldProcess,
)
from fencepost.simulation.world.sockets import VirtualSocket
from fencepost.simulation.world.telling import HELD_US, HeldLoop

if TYPE_CHECKING:
    from fencepost.simulation.world.network import VirtualNetwork

Arguments = TypeVarTuple("Arguments")

_FIRST_DESCRIPTOR = 1 << 20
"""Above all real ones: a call of the system with such a number fails, and touches no real file."""
_Selector: Any = selector_events.BaseSelectorEventLoop


class _NoSelector:
    """Stands where asyncio's transports look when they describe themselves."""

    def get_key(self, fd: int) -> NoReturn:
        """Nothing is registered."""
        raise KeyError(fd)

    def close(self) -> None:
        """Nothing is open."""


class WorldLoop(VirtualLoop, _Selector):  # type: ignore[misc]
    """A loop that several hosts share. Each callback runs on the host whose process scheduled it."""

    if TYPE_CHECKING:
        _selector: Any
        _ssock: None
        _csock: None

    def __init__(self, *, max_events: int | None = None) -> None:
        super().__init__(max_events=max_events)
        self._selector.close()  # of the system; nothing is registered there
        self._selector = _NoSelector()
        self.network: VirtualNetwork
        self.ahead_us = 0
        """The time for which the running callback has slept or computed, in microseconds."""
        self.held: list[HeldLoop] = []
        """The times for which callbacks have held programs."""
        self.in_executor = False
        self._sockets: dict[int, VirtualSocket] = {}
        self._next_descriptor = _FIRST_DESCRIPTOR
        self._unnamed_tasks = 0
        self._generators = 0
        self._generator_owners: dict[int, WorldProcess] = {}
        """Processes by the addresses of asynchronous generators that they have started."""

    # -- time -------------------------------------------------------------------------------------------

    def time(self) -> float:
        """Virtual seconds since the loop was made, for the callback that runs."""
        return (self.now_us + self.ahead_us) / 1_000_000

    @property
    def here_us(self) -> int:
        """The same in microseconds."""
        return self.now_us + self.ahead_us

    def sleep_blocking(self, seconds: float) -> None:
        """Let the callback that runs take that much longer, as `time.sleep` does."""
        self.ahead_us = max(self.ahead_us, first_us(self.time() + seconds) - self.now_us)
        if self.ahead_us >= HELD_US and not self.in_executor and (process := PROCESS.get()) is not None:
            self._note_held(process)

    def _note_held(self, process: WorldProcess) -> None:
        """Note the line that holds a program's event loop, once for each callback."""
        last = self.held[-1] if self.held else None
        if last is None or last.at_us != self.now_us or last.program != process.host.name:
            place = place_in(stack_of(sys._getframe(2)))
            last = HeldLoop(program=process.host.name, at_us=self.now_us, lasts_us=0, place=place)
            self.held.append(last)
        last.lasts_us = self.ahead_us

    # -- callbacks --------------------------------------------------------------------------------------

    def call_soon(
        self,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """Run the callback before time moves on, on the host of the process that it belongs to."""
        if self._closed:
            self._check_closed()
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is None:
            handle = events.Handle(callback, args, self, context)
        else:
            handle = ProcessHandle(callback, args, self, context)
            handle.process = process
        self._ready.append(handle)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run the callback at that time of `time()`, never before it; equal times keep their order."""
        self._check_closed()
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is None:
            handle = events.TimerHandle(when, callback, args, self, context)
        else:
            handle = ProcessTimer(when, callback, args, self, context)
            handle.process = process
        self._schedule_handle(handle, when, self._timer_due)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run the callback after that many virtual seconds, at least a microsecond.

        On a real machine time passes in between. A program that waits until a clock is beyond a deadline
        would ask forever if it did not.
        """
        when = self.time() + max(delay, 0.000_001)
        return self.call_at(when, callback, *args, context=context)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """A task of the process that runs; the process knows its tasks."""
        context = options.get("context")
        process = PROCESS.get() if context is None else _process_in(context)
        if options.get("name") is None:
            # asyncio counts tasks over all runs of an interpreter.
            self._unnamed_tasks += 1
            options["name"] = f"Task-{self._unnamed_tasks}"
        task = super().create_task(coro, **options)
        if process is not None:
            process.tasks[task] = None
            task.add_done_callback(process.tasks.pop)
        return task

    @staticmethod
    def _timer_due(handle: asyncio.TimerHandle) -> None:
        handle._scheduled = False  # type: ignore[attr-defined]
        if not handle.cancelled():
            handle._run()

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Run the function at once, as there are no threads here.

        If it sleeps, the future is done that much later, and the rest of the program goes on meanwhile.
        """
        future = self.create_future()
        before_us, was_in_executor = self.ahead_us, self.in_executor
        self.in_executor = True
        complete, result = future.set_result, None
        try:
            result = func(*args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            complete, result = future.set_exception, error
        finally:
            took_us, self.ahead_us = self.ahead_us - before_us, before_us
            self.in_executor = was_in_executor
        if took_us:
            self.call_later(took_us / 1e6, lambda: future.done() or complete(result))
        else:
            complete(result)
        return future

    def stop(self) -> None:
        """Let the program that runs leave its loop; without one, end the run."""
        process = PROCESS.get()
        if process is None:
            self.halt()
        else:
            process.leave(RuntimeError("Event loop stopped before Future completed."))

    # -- exceptions and generators --------------------------------------------------------------------------

    def set_exception_handler(self, handler: Callable[..., object] | None) -> None:
        """Set the handler of the process that runs: programs share a loop, and know nothing of each other."""
        process = PROCESS.get()
        if process is None:
            super().set_exception_handler(handler)
        elif handler is not None and not callable(handler):
            raise TypeError(f"A callable object or None is expected, got {handler!r}")
        else:
            process.exception_handler = handler

    def get_exception_handler(self) -> Any:
        """Return the handler of the process that runs."""
        process = PROCESS.get()
        return super().get_exception_handler() if process is None else process.exception_handler

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Call the handler of the process that the failed callback belongs to."""
        handle: Any = context.get("handle")
        process = PROCESS.get() if handle is None else handle._context.get(PROCESS)
        handler = None if process is None or process.ended else process.exception_handler
        if handler is None:
            super().call_exception_handler(context)
            return
        place = contextvars.copy_context() if handle is None else handle._context.copy()
        try:
            place.run(handler, self, context)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            logging.getLogger("asyncio").error("Unhandled error in exception handler", exc_info=error)

    def _asyncgen_firstiter_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        process = PROCESS.get()
        if process is None:
            super()._asyncgen_firstiter_hook(agen)
            return
        self._generators += 1
        process.generators[self._generators] = agen
        self._generator_owners[id(agen)] = process

    def _asyncgen_finalizer_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        process = self._generator_owners.pop(id(agen), None)
        if process is None:
            super()._asyncgen_finalizer_hook(agen)
        elif not process.ended and not self.is_closed():
            context = contextvars.Context()
            context.run(PROCESS.set, process)
            self.call_soon(self.create_task, agen.aclose(), context=context)

    # -- signals ------------------------------------------------------------------------------------------

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        """Call back when the process that runs is stopped with that signal."""
        process = PROCESS.get()
        if process is None:
            raise refusal(
                "loop.add_signal_handler()", "the test itself gets no signals", "it in a process of the world"
            )
        context = contextvars.copy_context()

        def handle() -> None:
            self.call_soon(callback, *args, context=context)

        process.signal_handlers[signal.Signals(sig)] = SignalHandler(callback, handle)

    def remove_signal_handler(self, sig: int) -> bool:
        """Forget the handler; True if there was one."""
        process = PROCESS.get()
        return process is not None and process.signal_handlers.pop(signal.Signals(sig), None) is not None

    # -- descriptors ------------------------------------------------------------------------------------

    def open_descriptor(self, sock: VirtualSocket) -> int:
        """Give a socket a new number: what is left of a killed process may still use its own."""
        number = self._next_descriptor
        self._next_descriptor += 1
        self._sockets[number] = sock
        return number

    def close_descriptor(self, number: int) -> None:
        """Forget a socket that was closed."""
        if self._sockets.pop(number, None) is not None:
            self._transports.pop(number, None)  # the transport of a killed process does not know

    @staticmethod
    def is_real(number: int) -> bool:
        """Return true if a descriptor is one of the machine."""
        return 0 <= number < _FIRST_DESCRIPTOR

    def socket_at(self, number: int) -> VirtualSocket | None:
        """Return the open socket with that descriptor."""
        return self._sockets.get(number)

    def _socket_of(self, fd: Any, call: str) -> VirtualSocket:
        number = fd if isinstance(fd, int) else fd.fileno()
        found = self._sockets.get(number)
        if found is None:
            raise refusal(
                call, f"{fd!r} is no virtual socket", "asyncio's streams or a socket made in the run"
            )
        return found

    def _add_reader(self, fd: Any, callback: Callable[..., object], *args: Any) -> asyncio.Handle:
        return self._socket_of(fd, "loop.add_reader()").when_readable(callback, args)

    def _remove_reader(self, fd: Any) -> bool:
        found = self._sockets.get(fd if isinstance(fd, int) else fd.fileno())
        return found is not None and found.not_when_readable()

    def _add_writer(self, fd: Any, callback: Callable[..., object], *args: Any) -> asyncio.Handle:
        return self._socket_of(fd, "loop.add_writer()").when_writable(callback, args)

    def _remove_writer(self, fd: Any) -> bool:
        found = self._sockets.get(fd if isinstance(fd, int) else fd.fileno())
        return found is not None and found.not_when_writable()

    def _make_self_pipe(self) -> None:
        self._ssock = self._csock = None

    def _close_self_pipe(self) -> None:
        """Do nothing: there is no such pipe, as no other thread wakes this loop."""

    def _write_to_self(self) -> None:
        """Do nothing: this loop never sleeps, so it is never woken."""

    # -- the network ------------------------------------------------------------------------------------

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> list[Any]:
        """Resolve names of the world's hosts."""
        await asyncio.sleep(0)
        return self.network.resolve(host, port, **options)

    async def getnameinfo(self, sockaddr: Any, flags: int = 0) -> tuple[str, str]:
        """Return the name of a host of the world by its address."""
        return self.network.name_of(sockaddr[0]), str(sockaddr[1])

    if not TYPE_CHECKING:  # their many signatures say nothing about refusals
        create_connection = _Selector.create_connection
        create_server = _Selector.create_server
        add_reader = _Selector.add_reader
        add_writer = _Selector.add_writer

        def _refusing(call, reason, instead):  # noqa: N805  # runs in the class body
            def refuse(self, *_, **__) -> NoReturn:
                raise refusal(f"loop.{call}()", reason, instead)

            return refuse

        create_datagram_endpoint = _refusing("create_datagram_endpoint", "hosts speak TCP only", "TCP")
        subprocess_exec = _refusing(
            "subprocess_exec", "another program has no virtual time", "world.process() for your own code"
        )
        subprocess_shell = _refusing(
            "subprocess_shell", "another program has no virtual time", "world.process() for your own code"
        )
        connect_read_pipe = _refusing(
            "connect_read_pipe", "a pipe leads out of the world", "a TCP connection"
        )
        connect_write_pipe = _refusing(
            "connect_write_pipe", "a pipe leads out of the world", "a TCP connection"
        )
        create_unix_connection = _refusing("create_unix_connection", "hosts speak TCP only", "TCP")
        create_unix_server = _refusing("create_unix_server", "hosts speak TCP only", "TCP")
        del _refusing

    def _refuse(self, what: str) -> NoReturn:
        raise OutsideWorld(f"{what} has no place in a simulated world")


def _process_in(context: contextvars.Context) -> WorldProcess | None:
    """Return the process of a context. A new context belongs to the process that runs."""
    if PROCESS in context:
        return context.get(PROCESS)
    process = PROCESS.get()
    if process is not None:
        context.run(PROCESS.set, process)
    return process
