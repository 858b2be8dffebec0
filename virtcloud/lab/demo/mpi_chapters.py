"""The demonstration's chapters with Debian guests: the user's key, a login with ssh, and an MPI program."""

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from virtcloud.lab.demo.context import NETWORK, DemoContext
from virtcloud.model.cluster import ClusterRequest, ClusterSpec, ClusterState
from virtcloud.model.guest_seed import render_known_hosts
from virtcloud.model.guest_spec import Guest
from virtcloud.model.views import ClusterView

KEY = "demo-mpi"
OWNER = "alice"
IMAGE = "debian"
SET_UP_S, LOGIN_S, PROGRAM_S = 120.0, 120.0, 120.0
RETRY_S = 1.0
MPIRUN = "mpirun --hostfile /etc/virtcloud/hostfile --mca btl_tcp_if_include eth0 python3 bandwidth.py"
BANDWIDTH = re.compile(r"^n\d - n\d: \d+ Mbit/s$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class GuestLogins:
    """Logins with OpenSSH to the guests of a cluster, as from the user's own machine.

    SBF relays the connection. The file ``known_hosts`` contains the guests' host keys from SBF, so that ssh asks no
    question.
    """

    url: str
    identity: Path
    known_hosts: Path

    def command(self, guest: str, *words: str) -> list[str]:
        """Return the ssh command that runs a program in a guest."""
        connect = (sys.executable, "-P", "-m", "virtcloud.cli", "--url", self.url, "guest", "connect", KEY, "%h", "%p")
        options = {
            "IdentityFile": str(self.identity),
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": str(self.known_hosts),
            "StrictHostKeyChecking": "yes",
            "BatchMode": "yes",
            "ProxyCommand": shlex.join(connect),
        }
        arguments = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        return ["ssh", "-F", "none", *arguments, f"{OWNER}@{guest}", *words]

    def run(self, guest: str, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a program in a guest."""
        argv = self.command(guest, *words)
        return subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=PROGRAM_S, check=False)  # noqa: S603

    def wait_until_accepted(self, guest: str) -> subprocess.CompletedProcess[str]:
        """Repeat a login until the guest accepts the login or a time limit passes. Return the last result."""
        deadline = time.monotonic() + LOGIN_S
        while True:
            login = self.run(guest, "hostname; id -un")
            if login.returncode == 0 or time.monotonic() > deadline:
                return login
            time.sleep(RETRY_S)


def run_mpi_program(context: DemoContext) -> None:
    """Create a cluster of Debian guests, log in with the user's key, and measure the bandwidth between the sites."""
    report = context.report
    with report.chapter("alice's key opens three Debian guests, one at each site"):
        view = _create_cluster(context)
        logins = _prepare_logins(context)
        for guest in view.spec.guests:
            login = logins.wait_until_accepted(guest.name)
            report.check(
                f"ssh {OWNER}@{guest.name} on {guest.host} asks no question and runs a shell",
                login.stdout.split() == [guest.name, OWNER],
                login.stderr.strip() or login.stdout,
            )
    with report.chapter("An MPI program measures the bandwidth between the sites"):
        _measure_bandwidth(context, logins, [guest.name for guest in view.spec.guests])
        context.follow(
            context.client.delete_cluster(KEY), lambda current: current.state is ClusterState.RELEASED, SET_UP_S
        )


def _create_cluster(context: DemoContext) -> ClusterView:
    public_key = (context.lab.state.folder / "keys/user.pub").read_text().strip()
    context.report.print_line(f"virtcloud key add: {context.client.add_key(OWNER, public_key).fingerprint}")
    guests = tuple(
        Guest(name=f"n{i}", host=host, image=IMAGE, memory_mb=256, addresses=(f"{NETWORK}{i}/24",))
        for i, host in enumerate(context.first_hosts(), start=1)
    )
    spec = ClusterSpec(owner=OWNER, guests=guests, deadline_s=SET_UP_S)
    view = context.client.put_cluster(KEY, ClusterRequest(spec=spec))
    ended = {ClusterState.ACTIVE, ClusterState.FAILING, ClusterState.FAILED}
    view = context.follow(view, lambda current: current.state in ended, SET_UP_S)
    context.report.check(f"{KEY} is active", view.state is ClusterState.ACTIVE, f"{view.state}: {view.reason}")
    return view


def _prepare_logins(context: DemoContext) -> GuestLogins:
    folder = context.lab.state.folder
    known_hosts = folder / f"{KEY}.known_hosts"
    known_hosts.write_text(render_known_hosts(context.client.peers(KEY).peers))
    return GuestLogins(f"unix://{context.lab.sbf_socket}", folder / "keys/user", known_hosts)


def _measure_bandwidth(context: DemoContext, logins: GuestLogins, guests: Sequence[str]) -> None:
    program = resources.files("virtcloud.lab.demo").joinpath("bandwidth.py").read_text(encoding="utf-8")
    for guest in guests:
        logins.run(guest, "cat > bandwidth.py", stdin=program)
    context.report.print_line(f"{guests[0]}$ {MPIRUN}")
    done = logins.run(guests[0], MPIRUN)
    lines = BANDWIDTH.findall(done.stdout)
    for line in lines:
        context.report.print_line(f"  {line}")
    pairs = len(guests) * (len(guests) - 1) // 2
    context.report.check(
        f"the processes in {', '.join(guests)} exchanged messages ({pairs} pairs)",
        len(lines) == pairs,
        (done.stderr or done.stdout).strip(),
    )
