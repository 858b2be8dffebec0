"""The messages of OpenVPN's management interface (management-notes.txt of OpenVPN 2.6): parser and commands. Pure.

The device chooses the values whose names begin with ``IV_`` or ``UV_``, and can choose no other value.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple

from virtcloud.agent.gateway.admission import DeviceRequest

KILL: Final = "client-kill"
"""The command that sends a device a notice and ends its connection. OpenVPN's answer begins with the same word."""
NOTICE_S: Final = 0.2
"""Seconds between OpenVPN's answer to a notice and the end of the connection."""
FINGERPRINT: Final = "tls_digest_sha256_0"
_ANSWERED: Final = {"CONNECT", "REAUTH"}
_PROTOCOL: Final = re.compile(r"^(?:udp|tcp)[46]?(?:-server)?:")
_SAFE_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
MAX_ENVIRONMENT: Final = 500
"""Limit of stored ``ENV`` lines of one device. Further lines are ignored."""


class DeviceGone(NamedTuple):
    """OpenVPN has closed a device's connection."""

    client: int


class CommandDone(NamedTuple):
    """The answer to a command. ``ok`` is false if OpenVPN refused the command."""

    ok: bool
    text: str


class ServerReady(NamedTuple):
    """OpenVPN accepts connections."""


class ServerFailed(NamedTuple):
    """OpenVPN ends because of an error."""

    text: str


class ClientRow(NamedTuple):
    """A connected client in the answer to ``status 3``.

    ``remote`` is the client's present outer address and port, which may have changed since the client connected.
    """

    client: int
    common_name: str
    remote: str
    received_bytes: int
    sent_bytes: int


class StatusDone(NamedTuple):
    """The answer to ``status 3``: all connected clients."""

    clients: tuple[ClientRow, ...]


ManagementEvent = DeviceRequest | DeviceGone | CommandDone | ServerReady | ServerFailed | StatusDone


@dataclass(slots=True)
class MessageParser:
    """Parses the lines of OpenVPN to events."""

    _header: tuple[str, ...] = ()
    _environment: dict[str, str] = field(default_factory=dict)
    _rows: list[ClientRow] = field(default_factory=list)

    def feed(self, line: str) -> ManagementEvent | None:
        """Parse one line. Return the event that ends with this line, or None."""
        if line.startswith(">CLIENT:"):
            return self._feed_client(line.removeprefix(">CLIENT:"))
        if line.startswith(">FATAL:"):
            return ServerFailed(line.removeprefix(">FATAL:"))
        if line.startswith(">STATE:") and line.split(",")[1] == "CONNECTED":
            return ServerReady()
        if line.startswith(("SUCCESS:", "ERROR:")):
            return CommandDone(line.startswith("SUCCESS:"), line.partition(": ")[2])
        if line.startswith("CLIENT_LIST\t"):
            self._rows.append(_parse_row(line.split("\t")))
        if line == "END":
            rows, self._rows = tuple(self._rows), []
            return StatusDone(rows)
        return None

    def _feed_client(self, text: str) -> ManagementEvent | None:
        kind, _, rest = text.partition(",")
        if kind != "ENV":
            self._header, self._environment = (kind, *rest.split(",")), {}
        elif rest == "END":
            header, self._header = self._header, ()
            return _make_event(header, self._environment)
        elif len(self._environment) < MAX_ENVIRONMENT:
            name, _, value = rest.partition("=")
            self._environment[name] = value
        return None


def _make_event(header: tuple[str, ...], environment: dict[str, str]) -> ManagementEvent | None:
    kind, *numbers = header or ("",)
    if kind == "DISCONNECT":
        return DeviceGone(int(numbers[0]))
    if kind not in _ANSWERED:
        return None
    client, key = map(int, numbers)
    return DeviceRequest(
        client,
        key,
        environment.get(FINGERPRINT, "").replace(":", "").lower(),
        environment.get("common_name", ""),
        _format_remote(environment),
        renews=kind == "REAUTH",
    )


def _format_remote(environment: dict[str, str]) -> str:
    port = environment.get("trusted_port") or environment.get("untrusted_port", "")
    address = environment.get("trusted_ip") or environment.get("untrusted_ip")
    address6 = environment.get("trusted_ip6") or environment.get("untrusted_ip6")
    if address6:
        mapped = IPv6Address(address6).ipv4_mapped
        address = str(mapped) if mapped else f"[{address6}]"
    return f"{address or 'unknown'}:{port}"


def _parse_row(fields: list[str]) -> ClientRow:
    return ClientRow(int(fields[10]), fields[1], _format_row_remote(fields[2]), int(fields[5]), int(fields[6]))


def _format_row_remote(text: str) -> str:
    """Return the address and port of a row as `_format_remote` does, or "" without an IP address.

    Return "" if ``text`` contains no IP address. Also return "" for an IPv6 address without brackets, because OpenVPN
    2.6 prints such an address without the port. Later versions print the protocol before the address.
    """
    host, _, port = _PROTOCOL.sub("", text).rpartition(":")
    if ":" in host and not host.startswith(("[", "::ffff:")):
        return ""
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return ""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else address
    return f"{mapped}:{port}" if mapped else f"[{address}]:{port}"


def render_admission(request: DeviceRequest, options: Iterable[str]) -> str:
    """Return the command that admits a device. A device that renews its keys gets no options."""
    if request.renews:
        return f"client-auth-nt {request.client} {request.key}"
    return "\n".join((f"client-auth {request.client} {request.key}", *options, "END"))


def render_refusal(request: DeviceRequest, reason: str) -> str:
    """Return the command that refuses a device. The device shows the reason."""
    return f'client-deny {request.client} {request.key} "{reason}" "{reason}"'


def render_notice(client: int, reason: str, *, connects_again: bool) -> str:
    """Return the command that sends a device the reason why its connection ends.

    OpenVPN closes the connection 5 s later.
    """
    return f'{KILL} {client} "{"RESTART" if connects_again else "HALT"},{reason}"'


def render_end(common_name: str) -> str | None:
    """Return the command that immediately closes all connections of certificates with this common name.

    Return None if the command cannot contain the name.
    """
    return f"kill {common_name}" if _SAFE_NAME.fullmatch(common_name) else None
