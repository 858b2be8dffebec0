"""The processes of OpenVPN servers: their start as root with few capabilities, and their identification.

OpenVPN opens its port, tap and management socket as root, calls chroot(2), and changes to an unprivileged user. OpenVPN
2.6 would retain CAP_NET_ADMIN, by which OpenVPN could join every VLAN of the gateway. Therefore the capability bounding
set contains only the capabilities that the start needs. With ``no_new_privs``, no program that OpenVPN executes can get
other capabilities.
"""

import grp
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from virtcloud.agent.gateway.openvpn_config import ServerAccount
from virtcloud.agent.network.interfaces import BOOT_ID
from virtcloud.agent.own_processes import read_start_time
from virtcloud.model.document import Document
from virtcloud.model.errors import Refused, Unreachable
from virtcloud.model.vpn import VpnProtocol

REMEDY: Final = "apt-get install openvpn (Debian), dnf install openvpn from EPEL (RHEL)"
SEARCH_PATH: Final = "/usr/sbin:/usr/local/sbin:/usr/bin:/sbin:/bin"
USERS: Final = ("openvpn", "nobody")
"""The servers run as the first of these users that exists."""
MIN_VERSION: Final = (2, 6)
FINAL_LINES: Final = ("Exiting due to fatal error", "Use --help for more information")
"""The beginnings of lines that OpenVPN prints after the reason why it ends."""
CAPABILITIES: Final = "-all,+setuid,+setgid,+net_bind_service,+sys_chroot"


class VpnServerRecord(Document):
    """The record of a server's process.

    ``started`` is the time at which the process started, in clock ticks after the boot ``boot``. ``pid``, ``started``
    and ``boot`` together identify the process. ``tap`` is the index of the server's tap. ``config`` is the digest of
    the configuration, or "" until the server accepts connections.
    """

    protocol: VpnProtocol
    pid: int
    started: int
    boot: str
    tap: int
    config: str = ""

    @property
    def is_running(self) -> bool:
        """Whether the process is running."""
        return self.boot == BOOT_ID.read_text().strip() and read_start_time(self.pid) == self.started


class OpenvpnLaunch:
    """A process of OpenVPN that waits for its configuration.

    If the agent ends before it sends the configuration, the process ends too.
    """

    def __init__(self, management: Path) -> None:
        """Start the process. Raise Refused if OpenVPN is missing or cannot be started."""
        argv = _render_command(management)
        configuration, self._configuration = os.pipe2(os.O_CLOEXEC)
        self._output, output = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)  # a full pipe must not block the server
        streams = {0: configuration, 1: output, 2: output}
        actions = [(os.POSIX_SPAWN_DUP2, descriptor, number) for number, descriptor in streams.items()]
        try:
            self.pid = os.posix_spawn(argv[0], argv, {"PATH": SEARCH_PATH}, file_actions=actions, setsid=True)
        except OSError as error:
            self.close()
            raise Refused(f"cannot start OpenVPN: {error.strerror}") from error
        finally:
            os.close(configuration)
            os.close(output)

    def configure(self, config: str) -> None:
        """Write the configuration to the process. Raise no error if the process has ended."""
        with suppress(BrokenPipeError), os.fdopen(os.dup(self._configuration), "wb") as stdin:
            stdin.write(config.encode())
        os.close(self._configuration)
        self._configuration = -1

    def read_error(self) -> str:
        """Return the last line that OpenVPN printed before the lines of `FINAL_LINES`, or "no message".

        The line contains no time (``--suppress-timestamps``), so the same failure always has the same message.
        """
        with suppress(BlockingIOError):
            lines = os.read(self._output, 65536).decode(errors="replace").strip().splitlines()
            meaningful = [line for line in lines if not line.startswith(FINAL_LINES)]
            return meaningful[-1] if meaningful else "no message"
        return "no message"

    @contextmanager
    def named_errors(self) -> Iterator[None]:
        """Append the line of `read_error` to the message of an Unreachable error in the block."""
        try:
            yield
        except Unreachable as error:
            raise Unreachable(f"{error}: {self.read_error()}") from error

    def has_ended(self) -> bool:
        """Return whether the process has ended."""
        return read_start_time(self.pid) is None

    def close(self) -> None:
        """Close the pipes to the process. A configured process continues."""
        for descriptor in (self._output, self._configuration):
            if descriptor >= 0:
                os.close(descriptor)


def reap(pid: int) -> None:
    """Collect the exit status of an ended child process with waitpid(2)."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def describe_openvpn() -> str:
    """Return the version of OpenVPN and its user. Raise Refused with a remedy if OpenVPN is missing or too old."""
    result = subprocess.run((_find_program("openvpn"), "--version"), capture_output=True, text=True, check=False)  # noqa: S603 - OpenVPN
    match = re.match(r"OpenVPN (\d+)\.(\d+)\S*", result.stdout)
    if match is None or (int(match[1]), int(match[2])) < MIN_VERSION:
        found = match[0] if match else "no version"
        raise Refused(f"expected OpenVPN {'.'.join(map(str, MIN_VERSION))} or later, found {found}: {REMEDY}")
    return f"{match[0]}, user {find_server_account().user}"


def find_server_account() -> ServerAccount:
    """Return the unprivileged user and group of the servers. Raise Refused if the host has none of `USERS`."""
    for name in USERS:
        with suppress(KeyError):
            return ServerAccount(name, grp.getgrgid(pwd.getpwnam(name).pw_gid).gr_name)
    raise Refused(
        f"expected a user {' or '.join(USERS)} for OpenVPN on this gateway, found none: add one of these users"
    )


def _render_command(management: Path) -> list[str]:
    drop = (_find_program("setpriv"), "--no-new-privs", "--bounding-set", CAPABILITIES)
    options = ("--suppress-timestamps", "--config", "stdin", "--management", str(management), "unix")
    return [*drop, _find_program("openvpn"), *options]


def _find_program(name: str) -> str:
    path = shutil.which(name, path=SEARCH_PATH)
    if path is None:
        raise Refused(f"VPN access needs the program {name}, which is not installed: {REMEDY}")
    return path
