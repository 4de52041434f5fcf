"""The network of a world: hosts with names and addresses, ports, and the data in flight between them."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import ipaddress
import os
import random
import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from fencepost.simulation.kernel.rng import Draws, Quantiles, Samples
from fencepost.simulation.kernel.rules import PASS, Delay, Direction, Fate, Matching, Message, NetworkRule
from fencepost.simulation.world.processes import PROCESS, WorldHost, WorldProcess
from fencepost.simulation.world.sockets import ANY, Address, TcpPipe, VirtualSocket

if TYPE_CHECKING:
    from fencepost.simulation.world.loop import WorldLoop

LOOPBACK: Final = "127.0.0.1"
LOOPBACK_US: Final = 30
"""One-way latency within a host."""
_FIRST_RETRY_US: Final = 200_000
"""Delay until a lost segment is sent again; the delay doubles each time."""
_LONGEST_RETRY_US: Final = 120_000_000
_GIVE_UP_US: Final = 900_000_000
"""Time after which a connection that loses everything ends, approximately, as with Linux's tcp_retries2."""
_SYN_RETRY_US: Final = 1_000_000
_SYN_GIVE_UP_US: Final = 64_000_000
"""Attempts to connect end after about twice this time, as with Linux's tcp_syn_retries."""


class VirtualNetwork:
    """All hosts, and the connections between them. `rules` judge each segment, in their order.

    To rules the side that connected is the member, and the side that listened the broker.
    """

    def __init__(self, loop: WorldLoop, draws: Draws, latency: Quantiles) -> None:
        self.loop = loop
        self.rules: list[NetworkRule] = []
        self.hosts: dict[str, WorldHost] = {}
        self.aliases: dict[tuple[str, int], tuple[str, int]] = {}
        """Targets of connections to an address at which nothing listens: from host and port to those of
        another host. The host "" stands for the one that connects."""
        self.segments = 0
        self._groups: dict[str, tuple[WorldHost, ...]] = {}
        """Names that stand for several hosts."""
        self._orders: dict[tuple[str, str], random.Random] = {}
        """The order in which a host gets the addresses of such a name, by both names."""
        self._by_address: dict[str, WorldHost] = {}
        self._draws = draws
        self._latency = latency
        self._links: dict[tuple[str, str], Samples] = {}
        self._bound: dict[tuple[str, int], VirtualSocket] = {}
        """Listening and bound sockets by host name and port."""
        self._digest = hashlib.blake2b(digest_size=16)
        self.sent: list[tuple[int, str, str, int]] | None = None
        """All that was sent (when, from where, to where, how much), if it is kept."""
        self.test = self.add_host("test")
        """The host of the test itself, and of callers without a host."""

    # -- hosts ------------------------------------------------------------------------------------------

    def add_host(self, name: str) -> WorldHost:
        """Add a new host."""
        number = len(self.hosts) + 1
        host = WorldHost(name, f"10.0.{number >> 8}.{number & 255}", self.loop)
        self.hosts[name] = host
        self._by_address[host.address] = host
        return host

    def has_name(self, name: str) -> bool:
        """Return true if a name stands for hosts already, or is an address."""
        if name == "localhost" or name in self.hosts or name in self._groups:
            return True
        with contextlib.suppress(ValueError):
            return bool(ipaddress.IPv4Address(name))
        return False

    def here(self) -> WorldHost:
        """The host of the process that runs."""
        process = PROCESS.get()
        return self.test if process is None else process.host

    def name_together(self, name: str, hosts: Iterable[str]) -> None:
        """Let a name stand for several hosts. Each look-up returns all addresses, in an order of the seed."""
        self._groups[name] = tuple(self.hosts[each] for each in hosts)

    def name_of(self, address: str) -> str:
        """Return the name of the host with an address; the address itself if no host has it."""
        host = self._by_address.get(address)
        return "localhost" if address == LOOPBACK else address if host is None else host.name

    def resolve(  # noqa: PLR0917  # as the real one has it
        self,
        host: Any,
        port: Any,
        family: int = 0,
        type: int = 0,  # as the real one has it
        proto: int = 0,
        flags: int = 0,
    ) -> list[Any]:
        """Return addresses as `socket.getaddrinfo` does.

        :raises socket.gaierror: if no host has that name.
        """
        if isinstance(host, bytes):
            host = host.decode()
        number = int(port) if port not in (None, "") else 0
        if family not in (0, socket.AF_INET):
            raise socket.gaierror(socket.EAI_NONAME, "hosts of a simulated world have no IPv6 address")
        addresses = self._addresses_of(host, flags)
        kinds = [(socket.SOCK_STREAM, socket.IPPROTO_TCP)]
        if type not in (0, socket.SOCK_STREAM):
            kinds = [(socket.SocketKind(type), proto or 0)]
        return [
            (socket.AF_INET, kind, proto or protocol, "", (address, number))
            for address in addresses
            for kind, protocol in kinds
        ]

    def _addresses_of(self, host: str | None, flags: int) -> list[str]:
        if not host:
            return [ANY if flags & socket.AI_PASSIVE or host == "" else LOOPBACK]
        if host == "localhost":
            return [LOOPBACK]
        try:
            return [str(ipaddress.IPv4Address(host))]
        except ValueError:
            pass
        found = self.hosts.get(host)
        if found is not None:
            return [found.address]
        if host in self._groups:
            addresses = [each.address for each in self._groups[host]]
            self._order_for(self.here(), host).shuffle(addresses)
            return addresses
        known = ", ".join((*self.hosts, *self._groups))
        raise socket.gaierror(
            socket.EAI_NONAME, f"no host of the simulated world is called {host!r}; there are {known}"
        )

    def _order_for(self, host: WorldHost, name: str) -> random.Random:
        key = (host.name, name)
        found = self._orders.get(key)
        if found is None:
            found = self._orders[key] = self._draws.random(f"names/{host.name}/{name}")
        return found

    # -- ports ------------------------------------------------------------------------------------------

    def bind(self, sock: VirtualSocket, address: str, port: int) -> Address:
        """Give a port to a socket.

        :raises OSError: if it is taken, or the address is not that of the socket's host.
        """
        if PROCESS.get() is None and (other := self._by_address.get(address)) is not None:
            sock.host.sockets.pop(sock, None)  # a broker listens on a host of its own
            sock.host = other
            other.sockets[sock] = None
        host = sock.host
        if address not in (ANY, LOOPBACK, host.address, ""):
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
        while not port:
            port = host.free_port()
            if (host.name, port) in self._bound:
                port = 0
        if (host.name, port) in self._bound:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        self._bound[host.name, port] = sock
        return address or ANY, port

    def close(self, sock: VirtualSocket) -> None:
        """Take a socket's port back."""
        key = (sock.host.name, sock.local[1])
        if self._bound.get(key) is sock:
            del self._bound[key]

    # -- connecting -------------------------------------------------------------------------------------

    def connect(self, sock: VirtualSocket, address: str, port: int) -> None:
        """Begin to connect to a listening socket."""
        target, port = self._target(sock.host, address, port)
        if sock.local[0] == ANY:
            sock.local = (LOOPBACK if target is sock.host else sock.host.address, sock.local[1])
        self._attempt((sock, target, port, _SYN_RETRY_US))

    def _target(self, host: WorldHost, address: str, port: int) -> tuple[WorldHost | None, int]:
        target = host if address in (LOOPBACK, ANY) else self._by_address.get(address)
        if target is not None and not self._listening(target, port, address):
            names = ("", "localhost") if target is host else (target.name,)
            for name in names:
                if (alias := self.aliases.get((name, port))) is not None:
                    return self.hosts[alias[0]], alias[1]
        return target, port

    def _listening(self, host: WorldHost, port: int, address: str) -> VirtualSocket | None:
        """Return the socket that listens on a port of a host, at that address of it."""
        found = None if host.is_down else self._bound.get((host.name, port))
        if found is None or found.backlog is None:
            return None
        return found if ANY in (found.local[0], address) or found.local[0] == address else None

    def _attempt(self, attempt: tuple[VirtualSocket, WorldHost | None, int, int]) -> None:
        sock, target, port, retry_us = attempt
        if sock.fileno() < 0 or not sock.connecting:
            return
        now_us = self.loop.here_us
        if target is not None:
            client, server = sock.host.name, target.name
            verdict = self._judge(client, server, Direction.REQUEST, b"")
            if isinstance(verdict, int):
                when_us = now_us + self._latency_of(client, server) + verdict
                self.loop.schedule(when_us, self._knock, attempt)
                return
            self._hinder(sock.host, target)
            if verdict is Fate.CUT:
                self.loop.schedule(now_us, self._refused, sock)
                return
        if retry_us > _SYN_GIVE_UP_US:
            self.loop.schedule(now_us + retry_us, self._timed_out, sock)
        else:
            self.loop.schedule(now_us + retry_us, self._attempt, (sock, target, port, 2 * retry_us))

    def _refused(self, sock: VirtualSocket) -> None:
        sock.connected(errno.ECONNREFUSED)

    def _timed_out(self, sock: VirtualSocket) -> None:
        if sock.connecting:
            sock.connected(errno.ETIMEDOUT)

    def _knock(self, attempt: tuple[VirtualSocket, WorldHost, int, int]) -> None:
        """Handle a client's first packet at a host."""
        sock, target, port, retry_us = attempt
        if sock.fileno() < 0:
            return
        back_us = self.loop.now_us + self._latency_of(target.name, sock.host.name)
        assert sock.remote is not None
        address = sock.remote[0] if target is sock.host else target.address
        listening = self._listening(target, port, address)
        if listening is None:
            self.loop.schedule(back_us, self._refused, sock)
            return
        assert listening.backlog is not None
        if len(listening.backlog) > listening.backlog_limit:
            self.loop.schedule(self.loop.now_us + retry_us, self._attempt, (sock, target, port, 2 * retry_us))
            return
        accepted = VirtualSocket(loop=self.loop, host=target)
        local = LOOPBACK if target is sock.host else target.address
        accepted.local, accepted.remote = (local, port), sock.local
        there = TcpPipe(sock, accepted, sock.window(), Direction.REQUEST)
        back = TcpPipe(accepted, sock, listening.window(), Direction.RESPONSE)
        accepted.incoming, accepted.out = there, back
        ready_us = back_us + self._latency_of(sock.host.name, target.name)
        there.arrives_us, back.arrives_us = ready_us, back_us
        self.loop.schedule(back_us, self._established, (sock, there, back))
        self.loop.schedule(ready_us, self._offer, (listening, accepted))

    def _established(self, connection: tuple[VirtualSocket, TcpPipe, TcpPipe]) -> None:
        sock, there, back = connection
        if sock.fileno() < 0:
            there.target.be_reset()
            return
        sock.out, sock.incoming = there, back
        sock.connected(0)

    def _offer(self, offer: tuple[VirtualSocket, VirtualSocket]) -> None:
        listening, accepted = offer
        if listening.backlog is None or listening.fileno() < 0:
            accepted.received.clear()
            if accepted.out is not None:
                self.reset(accepted.out.target, accepted)
            accepted.close()
            return
        listening.backlog.append(accepted)
        listening.wake_reader()

    # -- bytes ------------------------------------------------------------------------------------------

    def transmit(self, pipe: TcpPipe, segment: bytes | None) -> None:
        """Transmit a segment; None is the end of the stream."""
        host = pipe.source.host
        if self.loop.ahead_us and (process := PROCESS.get()) is not None:
            self.loop.schedule(self.loop.here_us, self._transmit_of, (process, pipe, segment))
        elif host.frozen and host.process is None:
            host.run(self._transmit_late, (pipe, segment))
        elif pipe.retry_us:
            pipe.held.append(segment)
        elif not self._depart(pipe, segment):
            pipe.held.append(segment)
            pipe.lost_us, pipe.retry_us = self.loop.here_us, _FIRST_RETRY_US
            self.loop.schedule(pipe.lost_us + pipe.retry_us, self._send_again, pipe)

    def _transmit_of(self, waiting: tuple[WorldProcess, TcpPipe, bytes | None]) -> None:
        """Transmit what a process has sent after it had slept or computed, unless it was killed meanwhile."""
        process, pipe, segment = waiting
        if not process.ended:
            self.transmit(pipe, segment)
        elif segment is None:
            self.reset(pipe.target, pipe.source)  # its system ends the connection

    def _transmit_late(self, waiting: tuple[TcpPipe, bytes | None]) -> None:
        self.transmit(*waiting)

    def _depart(self, pipe: TcpPipe, segment: bytes | None) -> bool:
        """Send a segment; False if the network loses it."""
        source, target = pipe.source.host.name, pipe.target.host.name
        now_us = self.loop.here_us
        self.segments += 1
        size = len(segment or b"")
        self._digest.update(f"{now_us} {source} {target} {size}\n".encode())
        if self.sent is not None:
            self.sent.append((now_us, source, target, size))
        verdict: int | Fate = 0
        if self.rules:
            is_request = pipe.direction is Direction.REQUEST
            ends = (source, target) if is_request else (target, source)
            verdict = self._judge(*ends, pipe.direction, segment or b"")
        if verdict is Fate.CUT:
            self.cut(pipe.source)
            return True
        if not isinstance(verdict, int):
            self._hinder(pipe.source.host, pipe.target.host)
            return False
        arrives_us = now_us + self._latency_of(source, target) + verdict
        pipe.arrives_us = arrives_us = max(arrives_us, pipe.arrives_us)
        self.loop.schedule(arrives_us, self._arrive, (pipe, segment))
        return True

    def _send_again(self, pipe: TcpPipe) -> None:
        """Send again what was lost, and then what waits behind it."""
        now_us = self.loop.now_us
        if pipe.source.is_reset or pipe.target.is_reset:
            return
        if now_us - pipe.lost_us > _GIVE_UP_US:
            pipe.source.be_reset(errno.ETIMEDOUT)
            return
        waiting = pipe.held
        while waiting:
            if not self._depart(pipe, waiting[0]):
                pipe.retry_us = min(2 * pipe.retry_us, _LONGEST_RETRY_US)
                self.loop.schedule(now_us + pipe.retry_us, self._send_again, pipe)
                return
            waiting.popleft()
        pipe.retry_us = 0
        self._hinder(pipe.source.host, pipe.target.host)

    def _hinder(self, *hosts: WorldHost) -> None:
        for host in hosts:
            host.hindered_us = self.loop.now_us

    def _arrive(self, delivery: tuple[TcpPipe, bytes | None]) -> None:
        pipe, segment = delivery
        pipe.target.arrive(segment)

    def acknowledge(self, pipe: TcpPipe, size: int) -> None:
        """Note that bytes were read: a sender that waits for room learns of it after the way back."""
        source = pipe.source
        if pipe.window - pipe.sent > size:
            pipe.sent -= size  # there was room: no sender waits
            return
        back_us = self.loop.here_us + self._latency_of(pipe.target.host.name, source.host.name)
        self.loop.schedule(back_us, self._make_room, (pipe, size))

    def _make_room(self, room: tuple[TcpPipe, int]) -> None:
        pipe, size = room
        pipe.sent -= size
        pipe.source.wake_writer()

    # -- losses -----------------------------------------------------------------------------------------

    def reset(self, sock: VirtualSocket, by: VirtualSocket) -> None:
        """Reset the connection from one side; the other side learns of it after what was sent before."""
        pipe = by.out
        arrives_us = self.loop.here_us + self._latency_of(by.host.name, sock.host.name)
        if pipe is not None:
            pipe.arrives_us = arrives_us = max(arrives_us, pipe.arrives_us)
        self.loop.schedule(arrives_us, _reset, sock)

    def cut(self, sock: VirtualSocket) -> None:
        """Break a connection: both sides learn of it soon."""
        for each in (sock, None if sock.out is None else sock.out.target):
            if each is not None:
                arrives_us = self.loop.here_us + self._latency_of(self.test.name, each.host.name)
                self.loop.schedule(arrives_us, _reset, each)

    def cut_all(self, name: str) -> None:
        """Break all connections of a host."""
        for each in tuple(self.hosts[name].sockets):
            if each.out is not None:
                self.cut(each)

    def _judge(self, member: str, broker: str, direction: Direction, data: bytes) -> int | Fate:
        """Return the delay that the rules put on a segment, or its fate."""
        message: Message | None = None
        api_key = (
            int.from_bytes(data[4:6], "big") if direction is Direction.REQUEST and len(data) > 6 else None
        )
        for rule in self.rules:
            if not rule.concerns(member, broker, direction, api_key):
                continue
            if message is None:
                message = Message(member, broker, direction, data, api_key=api_key)
            verdict = rule.judge(message)
            if verdict is PASS:
                continue
            if isinstance(rule, Matching) and rule.spent:
                self.rules.remove(rule)
            if isinstance(verdict, Delay):
                return verdict.us
            assert isinstance(verdict, Fate), f"{verdict} is for the proxy before real brokers"
            return verdict
        return 0

    def _latency_of(self, source: str, target: str) -> int:
        if source == target:
            return LOOPBACK_US
        samples = self._links.get((source, target))
        if samples is None:
            samples = self._draws.samples(f"link/{source}/{target}", self._latency)
            self._links[source, target] = samples
        return samples.draw()

    def digest(self) -> str:
        """A hash of all that was sent: when, from where, to where, how much."""
        return self._digest.hexdigest()


def _reset(sock: VirtualSocket) -> None:
    sock.be_reset()
