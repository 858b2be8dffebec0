"""OpenVPN servers in memory, and devices that connect to these servers.

The servers behave as management-notes.txt and openvpn(8) of OpenVPN 2.6 describe: a management socket serves one
program at a time, messages are lost while no program is connected, and a server closes a connection 5 s after
``client-kill``. The time limit of a decision also applies to a connected device that renews its keys.
"""

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Protocol

NOTICE_END_S: Final = 5.0
"""Seconds between ``client-kill`` and the end of the connection."""
AUTH_S: Final = 300.0
"""Seconds for which a server waits for a decision (``hand-window``)."""
ENDED: Final = "process ended"


class Device(NamedTuple):
    """A user's computer with the certificate of a profile."""

    profile: str
    fingerprint: str
    address: str = "192.0.2.1"


@dataclass(slots=True)
class Connection:
    """A device's connection. ``vlan`` is None until the agent admits the device.

    ``asked`` is the time of the latest question about the device's key ``key``. If ``is_permitted`` is false, no
    program has answered this question.
    """

    device: Device
    asked: float
    key: int = 0
    is_permitted: bool = False
    vlan: int | None = None
    addresses: tuple[str, ...] = ()
    ends_at: float | None = None


class Program(Protocol):
    """The program that is connected to a management socket."""

    def receive_line(self, line: str) -> None:
        """Receive a line of the server."""


class Taps(Protocol):
    """The taps of the host."""

    def find_tap(self, name: str) -> int | None:
        """Return the index of a tap, or None."""


@dataclass(slots=True)
class FakeOpenvpn:
    """A process of OpenVPN. While ``hangs`` is true, the process does not read, send or accept connections."""

    pid: int
    socket: Path
    taps: Taps
    busy: set[int]
    """The ports that other programs use."""
    state: str = "waiting"
    error: str = "no message"
    tap: int | None = None
    tap_name: str = ""
    hangs: bool = False
    refuses: bool = False
    """Whether the socket's queue is full, so that no program can connect."""
    program: Program | None = None
    clients: dict[int, Connection] = field(default_factory=dict)
    _unread: list[str] = field(default_factory=list)
    _count: int = 0

    @property
    def is_alive(self) -> bool:
        return self.state != ENDED

    @property
    def listens(self) -> bool:
        return self.state in {"held", "running"} and not self.refuses

    def configure(self, config: str) -> None:
        """Read the configuration from stdin. End if the port is missing or in use, or if there is no tap."""
        options = dict(line.partition(" ")[::2] for line in config.splitlines())
        self.tap_name = options.get("dev", "")
        self.tap = self.taps.find_tap(self.tap_name)
        if "port" not in options or int(options["port"]) in self.busy or self.tap is None:
            self.error = "Address already in use" if "port" in options else "Options error"
            self.end()
        else:
            self.state = "held"

    def end(self) -> None:
        self.state, self.clients, self.program = ENDED, {}, None

    # Devices.

    def connect(self, device: Device, now: float) -> None:
        if self.state == "running" and not self.hangs:
            number, self._count = self._count, self._count + 1
            self.clients[number] = Connection(device, now)
            self._ask("CONNECT", number)

    def renew_keys(self, number: int, now: float) -> None:
        """Renew a device's keys, unless a decision about the device is pending."""
        one = self.clients[number]
        if not self.hangs and one.is_permitted:
            one.key, one.asked, one.is_permitted = one.key + 1, now, False
            self._ask("REAUTH", number)

    def float_device(self, number: int, address: str) -> None:
        """Change a device's outer address. OpenVPN sends no message."""
        self.clients[number].device = self.clients[number].device._replace(address=address)

    def disconnect(self, number: int) -> None:
        """Close a connection. OpenVPN reports this only if the device was admitted."""
        if self.clients.pop(number).vlan is not None:
            self._send(f">CLIENT:DISCONNECT,{number}", ">CLIENT:ENV,END")

    def _ask(self, kind: str, number: int) -> None:
        connection = self.clients[number]
        device, texts = connection.device, re.findall("..", connection.device.fingerprint)
        self._send(
            f">CLIENT:{kind},{number},{connection.key}",
            f">CLIENT:ENV,tls_digest_sha256_0={':'.join(texts)}",
            f">CLIENT:ENV,common_name={device.profile}",
            f">CLIENT:ENV,trusted_ip={device.address}",
            ">CLIENT:ENV,trusted_port=5000",
            ">CLIENT:ENV,END",
        )

    def pass_time(self, now: float) -> None:
        if self.hangs:
            return
        for number, one in list(self.clients.items()):
            if (one.ends_at is not None and one.ends_at <= now) or (not one.is_permitted and now - one.asked > AUTH_S):
                self.disconnect(number)

    # The management socket.

    def read_command(self, command: str, now: float) -> None:
        self._unread.append(command)
        if not self.hangs:
            self.resume(now)

    def resume(self, now: float) -> None:
        """Execute the commands that arrived while the server hung."""
        self.hangs = False
        commands, self._unread = self._unread, []
        for command in commands:
            self._execute(command, now)

    def forget_program(self) -> None:
        self.program = None

    def _send(self, *lines: str) -> None:
        for line in lines:
            if self.program is not None:
                self.program.receive_line(line)

    def _execute(self, command: str, now: float) -> None:
        word, *rest = shlex.split(command.splitlines()[0])
        match word, rest:
            case "state", _:
                self._send("SUCCESS: real-time state notification set to ON")
            case "hold", _:
                self.state = "running"
                self._send("SUCCESS: hold release succeeded", ">STATE:1700000000,CONNECTED,SUCCESS,,,,,")
            case "status", _:
                self._send("TITLE\tOpenVPN 2.6.3", *self._list_rows(), "END")
            case ("client-auth" | "client-auth-nt") as name, (number, key):
                self._answer(name, done=self._admit(int(number), int(key), command.splitlines()[1:]))
            case "client-deny", (number, *_):
                self._answer("client-deny", done=self.clients.pop(int(number), None) is not None)
            case "client-kill", (number, *_):
                known = int(number) in self.clients
                if known and self.clients[int(number)].ends_at is None:
                    self.clients[int(number)].ends_at = now + NOTICE_END_S
                self._answer("client-kill", done=known)
            case "kill", (name,):
                found = [client for client, one in self.clients.items() if one.device.profile == name]
                for client in found:
                    self.disconnect(client)
                self._send(
                    f"SUCCESS: common name '{name}' found, {len(found)} client(s) killed"
                    if found
                    else f"ERROR: common name '{name}' not found"
                )
            case _:
                self._send("ERROR: unknown command, enter 'help' for more options")

    def _answer(self, name: str, *, done: bool) -> None:
        self._send(f"SUCCESS: {name} command succeeded" if done else f"ERROR: {name} command failed")

    def _admit(self, number: int, key: int, options: Iterable[str]) -> bool:
        connection = self.clients.get(number)
        if connection is None or connection.key != key:
            return False
        connection.is_permitted = True
        for words in map(shlex.split, options):
            if words[0] == "vlan-pvid":
                connection.vlan = int(words[1])
            if words[0] == "push" and words[1].startswith("ifconfig "):
                connection.addresses = (words[1].split()[1],)
        return True

    def _list_rows(self) -> list[str]:
        return [
            "\t".join(
                (
                    "CLIENT_LIST",
                    one.device.profile,
                    f"{one.device.address}:5000",
                    "",
                    "",
                    "1",
                    "2",
                    "-",
                    "0",
                    "UNDEF",
                    str(number),
                    "0",
                    "AES-256-GCM",
                )
            )
            for number, one in self.clients.items()
        ]
