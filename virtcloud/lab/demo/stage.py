"""What the chapters play on: the lab, SBF, and the clusters of the story."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from virtcloud.client import SbfClient
from virtcloud.lab.demo.report import Report
from virtcloud.lab.lab import Lab
from virtcloud.lab.observe import Snapshot
from virtcloud.model.cluster import ClusterRequest, ClusterSpec, Guest
from virtcloud.model.errors import VirtcloudError
from virtcloud.model.topology import Topology
from virtcloud.model.views import ClusterView, Progress

POLL_S = 10.0
NETWORK = "10.0.0."


@dataclass(slots=True)
class Stage:
    """The lab, the client, what was there before, and how to write about it."""

    report: Report
    lab: Lab
    client: SbfClient
    topology: Topology
    before: Snapshot
    clusters: dict[str, ClusterView] = field(default_factory=dict)

    def first_hosts(self) -> list[str]:
        """Give the first host of each site."""
        return [site.hosts[0].name for site in self.topology.sites]

    def request(self, key: str, deadline_s: float) -> ClusterView:
        """Ask SBF for a cluster of one guest per site; every cluster gets the same addresses."""
        guests = tuple(
            Guest(name=f"n{i}", host=host, image="busybox", memory_mb=32, addresses=(f"{NETWORK}{i}/24",))
            for i, host in enumerate(self.first_hosts(), start=1)
        )
        spec = ClusterSpec(owner="alice", guests=guests, deadline_s=deadline_s)
        return self.client.put_cluster(key, ClusterRequest(spec=spec))

    def follow(self, view: ClusterView, until: Callable[[ClusterView], bool], limit_s: float) -> ClusterView:
        """Print every step that SBF reports until ``until`` holds; raises VirtcloudError after ``limit_s`` seconds."""
        start, told = time.monotonic(), set[str]()
        while True:
            told |= self._tell(view, told, time.monotonic() - start)
            if until(view):
                return view
            if time.monotonic() - start > limit_s:
                raise VirtcloudError(f"cluster {view.key} is still {view.state} after {limit_s:.0f} s: {view.reason}")
            view = self.client.cluster(view.key, after=view.version, wait=POLL_S)

    def _tell(self, view: ClusterView, told: set[str], seconds: float) -> set[str]:
        done = {Progress.CONFIRMED, Progress.REMOVED}
        steps = [f"{one.element} {one.progress}" for one in view.placements if one.progress in done]
        news = [step for step in [*steps, f"cluster is {view.state}"] if step not in told]
        if news:
            self.report.say(f"{seconds:5.1f} s  {view.key}: {', '.join(news)}")
        return set(news)
