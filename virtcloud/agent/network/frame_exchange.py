"""Sends check frames through a cluster's bridge to the cluster's other hosts (peers), and counts arriving frames.

The frames have EtherType 0x88b5, reserved for local experiments (IEEE 802). No element fragments these frames, because
they are not IP packets.

The source MAC address of a host's frames is the address of the bridge's uplink port. Peers send their frames to this
address. The bridge delivers such a frame to the host itself, and forwards the frame to no guest. So the socket needs no
bridge port and no promiscuous mode, and the host needs no cleanup. Guests receive only the small broadcasts, from which
the switches learn the hosts' addresses. A message authentication code (HMAC, RFC 2104) of sender, receiver, kind, round
and content prevents forged frames.

Fields after the Ethernet header, as offset, field and (length in bytes): 0 identifier of the check (8), 8 kind (1), 9
sender (2), 11 receiver (2), 13 round (4), 17 length of the packet (2), 19 code (16), then zeros from offset 35 to the
length of the packet.
"""

import errno
import hmac
import math
import select
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from enum import IntEnum
from itertools import islice
from types import TracebackType
from typing import Final, NamedTuple, Self

from virtcloud.agent.files import refuse_os_errors
from virtcloud.model.path_check import SMALL_BYTES, BridgeEnd, FrameExchange, FrameReport, ReceivedFrames
from virtcloud.model.values import Mac

ETHER_TYPE: Final = 0x88B5
SETTLE_S: Final = 0.3
"""Seconds of waiting for duplicates after a frame of each kind has arrived from each peer."""
FIRST_FRAMES_S: Final = 0.1
"""Seconds from the first broadcasts to the first other frames. Meanwhile, switches learn the hosts' addresses."""
GRACE_S: Final = 15.0
"""An exchange ends this number of seconds after its time limit, unless SBF ends the exchange earlier."""
TICK_S: Final = 0.02
MAX_FRAMES: Final = 1000
"""Limit of frames that are read before the next frames are sent."""
EVERYBODY: Final = 0xFFFF
BROADCAST: Final = b"\xff" * 6
_ETHERNET: Final = struct.Struct("!6s6sH")
_HEADER: Final = struct.Struct("!8sBHHIH")
_CODE_BYTES: Final = 16


class FrameKind(IntEnum):
    """The kinds of check frames: broadcasts, small frames, and frames of the full MTU."""

    BROADCAST = 1
    SMALL = 2
    FULL = 3


class CheckFrame(NamedTuple):
    """A check frame. ``sender`` and ``receiver`` are the hosts' numbers; a broadcast has the receiver `EVERYBODY`."""

    kind: FrameKind
    sender: int
    receiver: int
    round: int


def build_check_frame(exchange: FrameExchange, frame: CheckFrame, source: bytes, target: bytes) -> bytes:
    """Return the octets of a frame. Pure."""
    size = exchange.mtu if frame.kind is FrameKind.FULL else SMALL_BYTES
    identifier = bytes.fromhex(exchange.check)
    header = _HEADER.pack(identifier, frame.kind, frame.sender, frame.receiver, frame.round, size)
    padding = bytes(size - len(header) - _CODE_BYTES)
    return _ETHERNET.pack(target, source, ETHER_TYPE) + header + _code(exchange, header + padding) + padding


def parse_check_frame(exchange: FrameExchange, octets: bytes) -> CheckFrame | None:
    """Parse a received frame. Return None if the frame belongs to another check, or is damaged or forged. Pure."""
    packet = octets[_ETHERNET.size :]
    if len(packet) < SMALL_BYTES:
        return None
    identifier, kind, sender, receiver, number, size = _HEADER.unpack_from(packet)
    if identifier.hex() != exchange.check or kind not in set(FrameKind) or len(packet) < size:
        return None
    header, rest = packet[: _HEADER.size], packet[_HEADER.size : size]
    if not hmac.compare_digest(rest[:_CODE_BYTES], _code(exchange, header + rest[_CODE_BYTES:])):
        return None
    return CheckFrame(FrameKind(kind), sender, receiver, number)


def _code(exchange: FrameExchange, content: bytes) -> bytes:
    return hmac.digest(bytes.fromhex(exchange.secret.get_secret_value()), content, "sha256")[:_CODE_BYTES]


class FrameCounts:
    """Counts the frames that arrived at this host. ``mac`` is the source MAC address of the host's own frames. Pure."""

    def __init__(self, exchange: FrameExchange, mac: bytes) -> None:
        """Start with all counts at zero."""
        self._exchange = exchange
        self._sources = {exchange.number: mac, **{peer.number: _octets(peer.mac) for peer in exchange.peers}}
        self._seen: set[CheckFrame] = set()
        self._duplicates: Counter[int] = Counter()

    def add(self, octets: bytes) -> None:
        """Count a received frame.

        Ignore a frame unless a host of the check sent the frame to this host or as a broadcast.

        Count a broadcast only once, because a guest can send a received broadcast again.
        """
        frame = parse_check_frame(self._exchange, octets)
        if frame is None or frame.receiver not in {self._exchange.number, EVERYBODY}:
            return
        if _ETHERNET.unpack_from(octets)[1] != self._sources.get(frame.sender):
            return
        if frame in self._seen and frame.receiver != EVERYBODY:
            self._duplicates[frame.sender] += 1
        self._seen.add(frame)

    @property
    def complete(self) -> bool:
        """Whether a frame of each kind has arrived from each peer."""
        arrived = {(frame.sender, frame.kind) for frame in self._seen}
        return all((peer.number, kind) in arrived for peer in self._exchange.peers for kind in FrameKind)

    def report(self, error: str | None) -> FrameReport:
        """Return a report of the arrived frames. ``error`` is an error of sending, or None."""
        counts = Counter((frame.sender, frame.kind) for frame in self._seen)
        received = tuple(
            ReceivedFrames(
                number=sender,
                broadcast=counts[sender, FrameKind.BROADCAST],
                small=counts[sender, FrameKind.SMALL],
                full=counts[sender, FrameKind.FULL],
                duplicates=self._duplicates[sender],
            )
            for sender in self._sources
        )
        return FrameReport(received=received, error=error)


class BridgeSocket:
    """A packet socket (packet(7)) on a cluster's bridge."""

    def __init__(self, bridge: str, mtu: int, port: str) -> None:
        """Open a socket on ``bridge``. The source MAC address of its frames is the address of the bridge's ``port``.

        The bridge's own address is not used, because this address changes when guests start and stop. Raise Refused if
        the host has no such bridge.
        """
        self._bridge = bridge
        self._mtu = mtu
        with refuse_os_errors(f"open bridge {bridge} of this host"), ExitStack() as opened:
            # with protocol 0, the socket receives no frames before bind()
            self._socket = opened.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
            self._socket.bind((bridge, ETHER_TYPE))
            self._socket.setblocking(False)
            self._mac = _read_address(port)
            opened.pop_all()
        self._poll = select.poll()  # select() refuses descriptors greater than 1023
        self._poll.register(self._socket, select.POLLIN)

    def __enter__(self) -> Self:
        """Return the socket."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the socket."""
        self._socket.close()

    @property
    def end(self) -> BridgeEnd:
        """The source MAC address of the frames, and the MTU of the bridge."""
        return BridgeEnd(mac=Mac(self._mac.hex(":")), mtu=self._mtu)

    def exchange(self, exchange: FrameExchange, report: Callable[[FrameReport], None], ended: threading.Event) -> None:
        """Send and count frames until ``ended`` is set, or until `GRACE_S` after the time limit of the exchange.

        Call ``report`` once: `SETTLE_S` after the counts are complete, or at the time limit. Continue to send frames
        after the report, because other hosts may wait for these frames. Raise Refused if the bridge was removed.
        """
        counts, sender = FrameCounts(exchange, self._mac), _Sender(exchange, self._mac)
        start, reported, complete_at = time.monotonic(), False, math.inf
        with refuse_os_errors(f"exchange check frames on bridge {self._bridge} of this host"):
            while not ended.is_set() and (elapsed := time.monotonic() - start) < exchange.seconds + GRACE_S:
                for octets in sender.due(min(elapsed, exchange.seconds)):
                    sender.error = self._send(octets) or sender.error
                self._receive(counts)
                complete_at = min(complete_at, elapsed) if counts.complete else math.inf
                if not reported and (elapsed >= exchange.seconds or elapsed >= complete_at + SETTLE_S):
                    report(counts.report(sender.error))
                    reported = True

    def _send(self, octets: bytes) -> str | None:
        """Send a frame. If the queue is full, drop the frame.

        Return an error message if the bridge's MTU is too small.
        """
        try:
            self._socket.send(octets)
        except OSError as error:
            if error.errno in {errno.EAGAIN, errno.ENOBUFS}:
                return None
            if error.errno != errno.EMSGSIZE:
                raise
            size = len(octets) - _ETHERNET.size
            return f"bridge {self._bridge} of this host refuses packets of {size} bytes: its MTU is too small"
        return None

    def _receive(self, counts: FrameCounts) -> None:
        self._poll.poll(TICK_S * 1000)
        for octets in islice(_read_frames(self._socket), MAX_FRAMES):
            counts.add(octets)


class _Sender:
    """The schedule of one host's frames. Pure.

    In each round, a host sends a broadcast, and then frames to each peer. No two hosts begin with the same peer.
    """

    def __init__(self, exchange: FrameExchange, mac: bytes) -> None:
        self._exchange = exchange
        self._mac = mac
        self._frames = self._list_frames()
        self._next: tuple[float, bytes] | None = next(self._frames, None)
        self.error: str | None = None

    def due(self, elapsed: float) -> Iterator[bytes]:
        """Yield the frames that are due ``elapsed`` seconds after the start and were not yielded before."""
        while self._next is not None and self._next[0] <= elapsed:
            yield self._next[1]
            self._next = next(self._frames, None)

    def _list_frames(self) -> Iterator[tuple[float, bytes]]:
        """Yield all frames in the order of sending: the time in seconds after the start, and the octets."""
        exchange = self._exchange
        peers = sorted(exchange.peers, key=lambda peer: (peer.number < exchange.number, peer.number))
        for number in range(math.ceil(exchange.seconds / exchange.round_s)):
            start = number * exchange.round_s
            yield start, self._build(FrameKind.BROADCAST, EVERYBODY, number, BROADCAST)
            for index, peer in enumerate(peers):
                at = start + (FIRST_FRAMES_S if number == 0 else 0) + index * exchange.round_s / len(peers)
                for kind in (FrameKind.SMALL, FrameKind.FULL):
                    yield at, self._build(kind, peer.number, number, _octets(peer.mac))

    def _build(self, kind: FrameKind, receiver: int, number: int, target: bytes) -> bytes:
        frame = CheckFrame(kind, self._exchange.number, receiver, number)
        return build_check_frame(self._exchange, frame, self._mac, target)


def _read_address(interface: str) -> bytes:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as packet_socket:
        packet_socket.bind((interface, 0))
        return bytes(packet_socket.getsockname()[4])


def _octets(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))


def _read_frames(packet_socket: socket.socket) -> Iterator[bytes]:
    while True:
        try:
            yield packet_socket.recv(1 << 16)
        except BlockingIOError:
            return
