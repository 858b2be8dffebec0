"""A real SBF on the loopback, with an agent's listener for guest sessions."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from sqlalchemy import func, select

from sbf_service.server import make_server_config
from sbf_service.store.tables.guest_tables import GuestSessionRow
from support.sbf_fakes.world import World, make_world, spec
from virtcloud.agent.guest_access.guest_channels import GuestChannel
from virtcloud.agent.guest_access.session_listener import SessionListener
from virtcloud.agent.network.frame_exchange import BridgeSocket
from virtcloud.agent.supervision import start_unsupervised
from virtcloud.client.api import Client
from virtcloud.client.session_stream import SessionStream
from virtcloud.model.access import Role
from virtcloud.model.errors import Refused
from virtcloud.model.guest_sessions import GuestSession
from virtcloud.model.values import Name
from virtcloud.model.wanted import Segment

CHUNK = 1 << 16


class PairChannel:
    """The agent's channel to a guest: one end of a socket pair. At the other end, the test acts as the guest."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self.sent = 0

    def receive(self) -> bytes:
        try:
            data = self._end.recv(CHUNK)
        except OSError:
            return b""
        self.sent += len(data)
        return data

    def send(self, data: bytes) -> None:
        self._end.sendall(data)

    def send_end(self) -> None:
        self._end.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        try:
            self._end.shutdown(socket.SHUT_RDWR)
        except OSError:
            return


@dataclass
class FakeGuests:
    """The guests of a host.

    For each session, ``served`` contains a pair: the test's end of the socket pair, and the agent's channel to the
    guest.
    """

    refusal: str | None = None
    served: list[tuple[socket.socket, PairChannel]] = field(default_factory=list)
    asked: list[GuestSession] = field(default_factory=list)
    ended: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    @contextmanager
    def connect(self, session: GuestSession, _segment: Segment) -> Iterator[GuestChannel]:
        self.asked.append(session)
        if self.refusal:
            raise Refused(self.refusal)
        ours, theirs = socket.socketpair()
        with ours:
            channel = PairChannel(ours)
            self.served.append((theirs, channel))
            yield channel
        self.ended.release()


@dataclass
class Installation:
    """A world that is served on the loopback, and the fake guests of the host brno-h1."""

    world: World
    url: str
    server: uvicorn.Server
    guests: FakeGuests
    stack: ExitStack

    def client(self, role: Role, name: str, *sites: str) -> Client:
        client = Client(self.url, token=self.world.token(role, name, *sites))
        self.stack.callback(client.close)
        return client

    def connect(self, port: int = 22) -> SessionStream:
        stream = self.client(Role.USER, "alice").get("demo").guests["g1"].connect(port)
        self.stack.callback(stream.close)
        return stream

    @property
    def open_sessions(self) -> int:
        return int(self.server.config.app.app.state.sessions.open_sessions)

    @property
    def rows(self) -> int:
        return count_session_rows(self.world)


def count_session_rows(world: World) -> int:
    with world.store.read() as unit:
        return unit.session.scalar(select(func.count()).select_from(GuestSessionRow)) or 0


def await_true(reached: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)


Start = Callable[..., Installation]


def no_bridge(_segment: Segment) -> BridgeSocket:
    raise Refused("this host has no bridge")


def serve_world(world: World, stack: ExitStack) -> tuple[str, uvicorn.Server]:
    listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    server = uvicorn.Server(make_server_config(world.service, None))
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()

    def stop() -> None:
        world.service.change_feed.close()
        server.should_exit = True
        thread.join()

    stack.callback(stop)
    return f"http://127.0.0.1:{listening.getsockname()[1]}", server


@contextmanager
def serve_worlds(folder: Path) -> Iterator[Start]:
    """Yield a function that serves a world.

    With the argument ``agent=False``, the function starts no agent. ``agent_timeout`` is the timeout in seconds of the
    agent's calls. All other keyword arguments of the function are settings of the relay.
    """
    with ExitStack() as stack:

        def make(*, agent: bool = True, agent_timeout: float = 10.0, **relay: float) -> Installation:
            world = make_world(folder)
            world.clock.stands = False
            stack.callback(world.close)
            world.furnish()
            world.put("demo", spec("brno-h1"))
            world.settle()
            world.service.settings.__dict__["relay"] = world.service.settings.relay.model_copy(update=relay)
            url, server = serve_world(world, stack)
            made = Installation(world, url, server, FakeGuests(), stack)
            stack.callback(lambda: [end.close() for end, _ in made.guests.served])
            await_true(lambda: server.started)
            if agent:
                sbf = made.client(Role.AGENT, "brno-h1").sbf.with_timeout(agent_timeout)
                listener = SessionListener(Name("brno-h1"), sbf, made.guests.connect, no_bridge)
                stack.callback(listener.stop)
                listener.start(start_unsupervised)
            return made

        yield make
