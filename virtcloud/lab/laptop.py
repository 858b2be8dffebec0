"""OpenVPN clients on the laptop of a lab: unmodified clients with the profiles of users.

Two clusters may have the same addresses. Therefore the tap interface of each client can be moved to a separate network
namespace, while the client's process stays in the laptop's namespace.
"""

from dataclasses import dataclass

from virtcloud.lab.addressing import LAPTOP
from virtcloud.lab.lab import Lab

CONNECTED = "Initialization Sequence Completed"
"""The line that openvpn writes when the tunnel works."""
CONNECT_S = 30.0
POLL_S = 0.2
WAIT = """
for _ in $(seq "$3"); do
  grep -Eq "$1" "$2.log" && exit 0
  [ ! -s "$2.pid" ] || kill -0 "$(cat "$2.pid")" 2>/dev/null || exec grep -Eq "$1" "$2.log"
  sleep 0.2
done
exit 1
"""
"""A shell script that waits until a client has logged a line, and then exits with code 0.

The script exits with code 1 if the client ends or the time limit passes. A client writes the file with its process ID
some time after its start. Therefore a missing file does not mean that the client has ended.
"""
STOP = 'kill "$(cat "$0.pid")" && while kill -0 "$(cat "$0.pid")" 2>/dev/null; do sleep 0.1; done'


@dataclass(frozen=True, slots=True)
class LaptopVpn:
    """An OpenVPN client of the laptop. Clients with different names can run at the same time.

    If ``namespace`` is true, the client has a network namespace with the name ``name``, and `move_interface` moves the
    tap interface to this namespace.
    """

    lab: Lab
    name: str
    namespace: bool = False

    @property
    def interface(self) -> str:
        """The client's tap interface."""
        return f"tap-{self.name}"

    def connect(self, profile: str, *options: str) -> None:
        """Start a client with a profile. ``options`` are options of openvpn(8) that override options in the profile."""
        path = self._path
        self._shell(f"mkdir -p /run/vpn && umask 077 && cat >{path}.ovpn && : >{path}.log && rm -f {path}.pid", profile)
        own = ("--ifconfig-noexec", "--persist-tun") if self.namespace else ()
        if self.namespace:
            self._shell(f"ip netns add {self.name} 2>/dev/null; ip -n {self.name} link set lo up")
        self._run(
            *("openvpn", "--config", f"{path}.ovpn", "--dev", self.interface, "--dev-type", "tap", *own),
            *("--daemon", "--log-append", f"{path}.log", "--writepid", f"{path}.pid", *options),
        )

    def logs(self, pattern: str, limit_s: float = CONNECT_S) -> bool:
        """Wait until the client has logged a line that matches a regular expression (POSIX).

        Return False if the client ends without this line, or after ``limit_s`` seconds.
        """
        argv = ("sh", "-c", WAIT, "sh", pattern, self._path, str(round(limit_s / POLL_S)))
        return self.lab.run(LAPTOP, argv, timeout_s=limit_s + 60).returncode == 0

    def move_interface(self, *addresses: str) -> None:
        """Move the tap interface to the client's namespace, add ``addresses``, and set the interface up.

        Each address has a prefix length. Call this method soon after the start of the client: while the interface is
        down, OpenVPN cannot deliver a received frame, and reads no further data from the gateway.
        """
        lines = [f"ip link set {self.interface} netns {self.name}"]
        lines += [f"ip -n {self.name} addr add {address} dev {self.interface} nodad" for address in addresses]
        self._shell("; ".join([*lines, f"ip -n {self.name} link set {self.interface} up"]))

    def run(self, *argv: str, timeout_s: float = 60.0) -> tuple[int, str]:
        """Run a program in the network namespace of the tap interface. Return the program's exit code and output."""
        enter = ("ip", "netns", "exec", self.name) if self.namespace else ()
        done = self.lab.run(LAPTOP, (*enter, *argv), timeout_s=timeout_s)
        return done.returncode, done.stdout + done.stderr

    @property
    def log(self) -> str:
        """The client's log."""
        return self._run("cat", f"{self._path}.log")

    def disconnect(self) -> None:
        """Stop the client, and remove its namespace. Idempotent."""
        self.lab.run(LAPTOP, ("sh", "-c", STOP, self._path))
        if self.namespace:
            self.lab.run(LAPTOP, ("ip", "netns", "delete", self.name))

    @property
    def _path(self) -> str:
        return f"/run/vpn/{self.name}"

    def _shell(self, script: str, stdin: str = "") -> None:
        self.lab.run(LAPTOP, ("sh", "-c", script), stdin=stdin, check=True)

    def _run(self, *argv: str) -> str:
        return self.lab.run(LAPTOP, argv, check=True).stdout
