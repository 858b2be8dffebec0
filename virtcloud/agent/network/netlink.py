"""Messages to the kernel's routing family (rtnetlink(7)), and the socket that sends these messages.

The agent sends a few kinds of messages only, so this module knows neither names nor types of attributes. A library for
all of netlink needs 10 MB of memory, and most of the processor time in which the agent creates a segment.

A message is a header (16 octets), a fixed part, and attributes (type, length, value), which may contain attributes.
Integers have the byte order of the processor.
"""

import errno
import os
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import Final, TypeVar

T = TypeVar("T")
Attributes = Mapping[int, memoryview]
"""The values of a message's attributes by type."""
Values = Mapping[int, bytes]
"""The values of attributes to be sent, by type."""
NLM_F_REQUEST, NLM_F_ACK, NLM_F_REPLACE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_CREATE = 1, 4, 0x100, 0x300, 0x200, 0x400
NLM_F_DUMP_INTR = 0x10
"""Flag of an answer: the kernel's list changed while the kernel sent the list (linux/netlink.h)."""
NLMSG_ERROR, NLMSG_DONE = 2, 3
MAX_DATAGRAM: Final = 1 << 16
MAX_DUMPS: Final = 100
_NESTED: Final = 0x8000
"""Bit of an attribute's type: the value consists of attributes."""
_HEADER: Final = struct.Struct("=IHHII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_ERROR: Final = struct.Struct("=i")


class MessageKind(IntEnum):
    """The kinds of messages that the agent sends (linux/rtnetlink.h)."""

    NEWLINK = 16
    DELLINK = 17
    GETLINK = 18
    SETLINK = 19
    NEWADDR = 20
    GETADDR = 22
    NEWNEIGH = 28


class NetlinkError(OSError):
    """The kernel refused a message, with its error number."""


def u8(value: int) -> bytes:
    """Return the value of an attribute of one octet."""
    return value.to_bytes(1, "little")


def u16(value: int) -> bytes:
    """Return the value of an attribute of two octets."""
    return struct.pack("=H", value)


def u32(value: int) -> bytes:
    """Return the value of an attribute of four octets."""
    return struct.pack("=I", value)


def text(value: str) -> bytes:
    """Return the value of an attribute that is a string."""
    return value.encode() + b"\0"


def nested(kind: int) -> int:
    """Return the type of an attribute whose value consists of attributes."""
    return kind | _NESTED


def encode_attribute(kind: int, value: bytes) -> bytes:
    """Return an attribute, padded to a multiple of four octets."""
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + bytes(-length % 4)


def encode_attributes(values: Values) -> bytes:
    """Return attributes in the order of ``values``."""
    return b"".join(encode_attribute(kind, value) for kind, value in values.items())


def decode_attributes(data: memoryview) -> Attributes:
    """Return the attributes in ``data``. Each value is a part of ``data``."""
    attributes, offset, end = {}, 0, len(data)
    while offset + _ATTRIBUTE.size <= end:
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < _ATTRIBUTE.size:
            break
        attributes[kind & ~_NESTED] = data[offset + _ATTRIBUTE.size : offset + length]
        offset += length + (-length % 4)
    return attributes


def decode_text(value: memoryview | None) -> str | None:
    """Return the string that is an attribute's value. None stays None."""
    return None if value is None else bytes(value).rstrip(b"\0").decode(errors="surrogateescape")


def decode_integer(value: memoryview | None) -> int | None:
    """Return the unsigned integer that is an attribute's value. None stays None."""
    return None if value is None else struct.unpack({1: "=B", 2: "=H", 4: "=I"}[len(value)], value)[0]


class RouteSocket:
    """A netlink socket of the network namespace in which it was created. Only one thread may use it at a time.

    All methods raise NetlinkError if the kernel refuses a message, and OSError if the socket fails.
    """

    def __init__(self) -> None:
        """Open the socket."""
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        self._socket.bind((0, 0))
        self._sequence = 0

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def change(self, kind: MessageKind, content: bytes, flags: int = 0) -> None:
        """Send a message and wait for the kernel's confirmation."""
        for _ in self._exchange(kind, content, NLM_F_REQUEST | NLM_F_ACK | flags):
            pass

    def get(self, kind: MessageKind, content: bytes) -> memoryview:
        """Send a query. Return the content of the answer."""
        return next(self._exchange(kind, content, NLM_F_REQUEST))

    def dump(self, kind: MessageKind, content: bytes, parse: Callable[[memoryview], T]) -> list[T]:
        """Send a query for a list. Return the parsed content of each answer.

        Repeat the query if the list changed meanwhile. Raise NetlinkError if the list changes continually.
        """
        for _ in range(MAX_DUMPS):
            try:
                return [parse(body) for body in self._exchange(kind, content, NLM_F_REQUEST | NLM_F_DUMP)]
            except InterruptedError:
                continue
        raise NetlinkError(errno.EAGAIN, "the list changes continually")

    def _exchange(self, kind: MessageKind, content: bytes, flags: int) -> Iterator[memoryview]:
        """Send a message. Yield the content of each answer, until the confirmation, or one answer to a query.

        Raise InterruptedError after the last answer if the kernel's list changed.
        """
        self._sequence += 1
        header = _HEADER.pack(_HEADER.size + len(content), kind, flags, self._sequence, 0)
        self._socket.send(header + content)
        interrupted = False
        while True:
            data = memoryview(self._socket.recv(MAX_DATAGRAM))
            while data:
                length, answer, answer_flags, sequence, _ = _HEADER.unpack_from(data)
                body, data = data[_HEADER.size : length], data[length + (-length % 4) :]
                if sequence != self._sequence:  # an answer to an earlier message, whose reading was interrupted
                    continue
                interrupted |= bool(answer_flags & NLM_F_DUMP_INTR)
                if answer in {NLMSG_ERROR, NLMSG_DONE}:
                    _check(body)
                    if interrupted:
                        raise InterruptedError
                    return
                yield body


def _check(body: memoryview) -> None:
    """Raise NetlinkError if a confirmation, or the end of a list, has an error number."""
    (code,) = _ERROR.unpack_from(body) if len(body) >= _ERROR.size else (0,)
    if code:
        raise NetlinkError(-code, os.strerror(-code))
