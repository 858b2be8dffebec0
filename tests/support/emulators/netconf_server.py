"""NETCONF over SSH (RFC 6241, 6242) for emulated devices."""

import re
from collections.abc import Callable
from typing import ClassVar, Protocol

from lxml import etree

from support.emulators.terminal import Channel, Hangup

BASE = "urn:ietf:params:xml:ns:netconf:base:1.0"
END = b"]]>]]>"


class RpcFault(Exception):
    """The device rejects a request with an ``rpc-error`` of this message, tag and severity."""

    def __init__(self, message: str, tag: str = "operation-failed", severity: str = "error") -> None:
        super().__init__(message)
        self.tag, self.severity = tag, severity

    def xml(self) -> str:
        message = str(self).replace("&", "&amp;").replace("<", "&lt;")
        return (
            f"<rpc-error><error-type>protocol</error-type><error-tag>{self.tag}</error-tag>"
            f"<error-severity>{self.severity}</error-severity><error-message>\n{message}\n</error-message></rpc-error>"
        )


class NetconfDevice(Protocol):
    """The methods that a NETCONF session calls on its device."""

    capabilities: ClassVar[tuple[str, ...]]

    def request(self, session: "NetconfSession", operation: etree._Element) -> str: ...
    def end_session(self, session: "NetconfSession") -> None: ...


class NetconfSession:
    """One session: receives requests in frames and sends answers in frames."""

    def __init__(self, device: NetconfDevice, channel: Channel, number: int = 1) -> None:
        self._device, self._channel = device, channel
        self.number = number
        self._received = b""
        self._chunked = False

    def run(self) -> None:
        """Send hello and answer requests. Raise Hangup when the session ends."""
        capabilities = "".join(f"<capability>{name}</capability>" for name in self._device.capabilities)
        self._write(
            f'<hello xmlns="{BASE}"><capabilities>{capabilities}</capabilities>'
            f"<session-id>{self.number}</session-id></hello>"
        )
        try:
            client_hello = self._read().decode()
            self._chunked = all("base:1.1" in hello for hello in (client_hello, capabilities))
            while True:
                self._answer(etree.fromstring(self._read()))
        finally:
            self._device.end_session(self)

    def _answer(self, rpc: etree._Element) -> None:
        operation = plain(rpc)[0]
        attributes = " ".join(f'{key}="{value}"' for key, value in rpc.attrib.items())
        try:
            answer = "<ok/>" if operation.tag == "close-session" else self._device.request(self, operation)
        except RpcFault as fault:
            answer = fault.xml()
        self._write(f'<rpc-reply xmlns="{BASE}" {attributes}>\n{answer}\n</rpc-reply>')
        if operation.tag == "close-session":
            raise Hangup

    def _write(self, text: str) -> None:
        data = text.encode()
        framed = b"\n#%d\n%b\n##\n" % (len(data), data) if self._chunked else data + END
        try:
            self._channel.sendall(framed)
        except (OSError, EOFError) as error:
            raise Hangup from error

    def _read(self) -> bytes:
        return self._read_chunks() if self._chunked else self._until(END)

    def _read_chunks(self) -> bytes:
        message = b""
        while True:
            self._until(b"\n#")
            size = self._until(b"\n")
            if size == b"#":
                return message
            message += self._exactly(int(size))

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._received:
            self._receive()
        data, _, self._received = self._received.partition(mark)
        return data

    def _exactly(self, size: int) -> bytes:
        while len(self._received) < size:
            self._receive()
        data, self._received = self._received[:size], self._received[size:]
        return data

    def _receive(self) -> None:
        data = self._channel.recv(65536)
        if not data:
            raise Hangup
        self._received += data


def plain(element: etree._Element) -> etree._Element:
    """Remove all namespaces from an element, because emulated devices do not check namespaces. Return the element."""
    for child in element.iter():
        if isinstance(child.tag, str):
            child.tag = etree.QName(child).localname
    return element


def command_of(operation: etree._Element) -> str:
    """Return a request as one string, which tests match with patterns.

    The string contains these parts, separated by spaces: the operation's name, the attributes of the operation, the
    names of the inner elements, and the joined text of all elements.
    """
    attributes = "".join(f" {key}={value}" for key, value in operation.attrib.items())
    inner = "".join(f" {child.tag}" for child in operation.iterdescendants() if isinstance(child.tag, str))
    return re.sub(r"[ \t]+", " ", f"{operation.tag}{attributes}{inner} {''.join(operation.itertext()).strip()}").strip()


Answer = Callable[[etree._Element], str]
