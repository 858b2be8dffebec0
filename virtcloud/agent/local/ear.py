"""An ear on a cluster's bridge: asks guests whether they are up, and hears them.

The machine has no address there and stays hushed: frames are sent and read as they are (packet(7)).
"""

import select
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from types import TracebackType
from typing import Self

from virtcloud.agent.local.probes import ARP, IP, IPV6, heard, probe
from virtcloud.model.errors import Refused

AGAIN_S = 0.5
CLAIM_S = 6.0
"""So long RFC 5227 takes from the first probe at most: two more with PROBE_MAX between them, and ANNOUNCE_WAIT.

A guest that finds out whether it may have its address would take our probe for another claim to it. It announces itself
afterwards.
"""
LARGEST, MOST_FRAMES = 2048, 1000
"""Bytes of a frame, and frames that are read at a time: guests that never stop sending keep nobody from going on."""


class Ear:
    """Open while one call waits. Frames that come between two questions are kept by the kernel."""

    def __init__(self, bridge: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Listen on ``bridge``; raises Refused when this machine has none of that name."""
        self._bridge = bridge
        self._clock = clock
        self._claims: dict[IP, float] = {}
        with _refused(bridge), ExitStack() as opened:
            self._by_kind = {kind: opened.enter_context(_listener(bridge, kind)) for kind in (ARP, IPV6)}
            self._mac: bytes = self._by_kind[ARP].getsockname()[4]
            self._opened = opened.pop_all()
        self._poll = select.poll()  # select() refuses descriptors past 1023
        for one in self._by_kind.values():
            self._poll.register(one, select.POLLIN)

    def __enter__(self) -> Self:
        """Use it as a context."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stop listening."""
        self._opened.close()

    def ask(self, addresses: Iterable[IP], seconds: float) -> frozenset[IP]:
        """Give those that somebody was heard to have; returns when all were, or ``seconds`` are over.

        Raises Refused when the bridge went.
        """
        wanted, again, ends = frozenset(addresses), 0.0, self._clock() + seconds
        with _refused(self._bridge):
            silent = wanted - self._listen(wanted, 0)
            while silent and (now := self._clock()) < ends:
                if now >= again:
                    self._send(one for one in silent if not self._is_claimed(one))
                    again = now + AGAIN_S
                silent -= self._listen(wanted, min(ends, again) - now)
        return wanted - silent

    def _is_claimed(self, address: IP) -> bool:
        return address in self._claims and self._clock() < self._claims[address] + CLAIM_S

    def _send(self, addresses: Iterable[IP]) -> None:
        for address in addresses:
            self._by_kind[ARP].send(probe(self._mac, address))

    def _listen(self, wanted: frozenset[IP], seconds: float) -> set[IP]:
        """Give who is heard next; nobody after ``seconds``. Of an address only the first claim counts."""
        self._poll.poll(max(seconds, 0) * 1000)
        frames = (frame for listener in self._by_kind.values() for frame in islice(_frames(listener), MOST_FRAMES))
        told = [one for frame in frames if (one := heard(frame)) and one.address in wanted]
        self._claims = {one.address: self._clock() for one in told if one.claimed} | self._claims
        return {one.address for one in told if not one.claimed}


def _listener(bridge: str, kind: int) -> socket.socket:
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)  # of no kind: it hears nothing of other interfaces
    try:
        made.bind((bridge, kind))
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made


def _frames(listener: socket.socket) -> Iterator[bytes]:
    while True:
        try:
            yield listener.recv(LARGEST)
        except BlockingIOError:
            return


@contextmanager
def _refused(bridge: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Refused(f"cannot ask on bridge {bridge} of this machine: {error.strerror}") from error
