"""What all chapters of the demonstration use: the lab, a client of SBF, pings from guests, and captures of frames."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from virtcloud.client.sbf import SbfClient
from virtcloud.lab.demo.report import DemoReport
from virtcloud.lab.lab import Lab
from virtcloud.lab.snapshot import Snapshot, read_guests
from virtcloud.model.cluster import ClusterRequest, ClusterSpec
from virtcloud.model.errors import VirtcloudError
from virtcloud.model.guest_spec import Guest
from virtcloud.model.topology import Topology
from virtcloud.model.views import ClusterView, PlacementProgress

POLL_S = 10.0
NETWORK = "10.0.0."


@dataclass(slots=True)
class DemoContext:
    """The lab, the client of SBF, and the clusters. ``before`` is a snapshot from before the first cluster."""

    report: DemoReport
    lab: Lab
    client: SbfClient
    topology: Topology
    before: Snapshot
    clusters: dict[str, ClusterView] = field(default_factory=dict)

    def first_hosts(self) -> list[str]:
        """Return the first host of each site."""
        return [site.hosts[0].name for site in self.topology.sites]

    def request(self, key: str, deadline_s: float) -> ClusterView:
        """Request a cluster with one guest at each site. All clusters use the same IP addresses."""
        guests = tuple(
            Guest(name=f"n{i}", host=host, image="busybox", memory_mb=32, addresses=(f"{NETWORK}{i}/24",))
            for i, host in enumerate(self.first_hosts(), start=1)
        )
        spec = ClusterSpec(owner="alice", guests=guests, deadline_s=deadline_s)
        return self.client.put_cluster(key, ClusterRequest(spec=spec))

    def follow(self, view: ClusterView, until: Callable[[ClusterView], bool], limit_s: float) -> ClusterView:
        """Print every change of a cluster until ``until`` returns True for the cluster's view. Return this view.

        Raise VirtcloudError after ``limit_s`` seconds.
        """
        start, printed = time.monotonic(), set[str]()
        while True:
            printed |= self._print_new_steps(view, printed, time.monotonic() - start)
            if until(view):
                return view
            if time.monotonic() - start > limit_s:
                raise VirtcloudError(f"cluster {view.key} is still {view.state} after {limit_s:.0f} s: {view.reason}")
            view = self.client.cluster(view.key, after=view.version, wait=POLL_S)

    def _print_new_steps(self, view: ClusterView, printed: set[str], seconds: float) -> set[str]:
        done = {PlacementProgress.CONFIRMED, PlacementProgress.REMOVED}
        steps = [
            f"{placement.element} {placement.progress}" for placement in view.placements if placement.progress in done
        ]
        new_steps = [step for step in [*steps, f"cluster is {view.state}"] if step not in printed]
        if new_steps:
            self.report.print_line(f"{seconds:5.1f} s  {view.key}: {', '.join(new_steps)}")
        return set(new_steps)


WINDOW_S = 6
ENTER_CONTAINER = (
    "read -r controller </run/libvirt/lxc/$0.pid; read -r first </proc/$controller/task/$controller/children; "
    'exec nsenter -t "$first" -n -m -u -- "$@"'
)
"""A shell command that runs a program in a container. The container's first process is the only child of its
libvirt_lxc process. The shell reads both process IDs itself, because pgrep would read the files of all processes."""
ABSENT_ADDRESS = "10.0.0.77"
"""An address that no guest has. An ARP request for this address reaches every guest of the cluster."""


@dataclass(frozen=True, slots=True)
class PingResult:
    """Whether ping succeeded, and the last lines of its output."""

    succeeded: bool
    summary: str


def ping_from_guest(context: DemoContext, view: ClusterView, guest: int, address: str, *options: str) -> PingResult:
    """Ping ``address`` from a guest of the cluster. ``guest`` is the guest's index in the cluster, from 0."""
    sender = view.spec.guests[guest]
    domain = next(
        name for name in read_guests(context.lab, sender.host) if view.id in name and name.endswith(sender.name)
    )
    ping = context.lab.run(sender.host, ("sh", "-c", ENTER_CONTAINER, domain, "/bin/ping", *options, address))
    return PingResult(ping.returncode == 0, " ".join(ping.stdout.split("\n")[-3:]).strip() or ping.stderr.strip())


def capture_frames(
    context: DemoContext, pool: ThreadPoolExecutor, node: str, interface: str, *filter_words: str
) -> Future[list[str]]:
    """Start to capture frames on a node's interface, for ``WINDOW_S`` seconds.

    The future's result contains one line of tcpdump's output for each frame. ``filter_words`` is a filter of tcpdump.
    """
    command = ("timeout", str(WINDOW_S), "tcpdump", "-Z", "root", "-l", "-nn", "-e", "-i", interface, *filter_words)

    def capture() -> list[str]:
        result = context.lab.run(node, command)
        if "listening on" not in result.stderr:
            raise RuntimeError(f"tcpdump on {node} {interface}: {result.stderr.strip()}")
        return result.stdout.splitlines()

    return pool.submit(capture)
