"""The chapters of the demonstration: two clusters, their connectivity and isolation, a failed creation, the removal.

The checks read the lab's nodes. The states of clusters and the VLAN IDs in use come from SBF.
"""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from virtcloud.client.sbf import SbfClient
from virtcloud.lab.demo.context import ABSENT_ADDRESS, NETWORK, DemoContext, capture_frames, ping_from_guest
from virtcloud.lab.demo.mpi_chapters import run_mpi_program
from virtcloud.lab.demo.report import DemoReport
from virtcloud.lab.demo.vpn_chapter import join_from_laptop
from virtcloud.lab.lab import Lab
from virtcloud.lab.snapshot import Snapshot, read_switch_vlans, switch_names, take_snapshot
from virtcloud.lab.state import find_remains
from virtcloud.model.cluster import ClusterState
from virtcloud.model.values import Name, VlanId
from virtcloud.model.views import ClusterView, PlacementProgress
from virtcloud.model.vlans import VlanSet

SET_UP_S = 60.0


def create_clusters(context: DemoContext) -> None:
    """Request both clusters at the same time and wait until they are active."""
    report = context.report
    with report.chapter("Two clusters with the same IP addresses, each with one guest at each of three sites"):
        views = [context.request(key, SET_UP_S) for key in ("demo-a", "demo-b")]
        for view in views:
            reached = context.follow(
                view, lambda current: current.state not in {ClusterState.REQUESTED, ClusterState.CONFIGURING}, SET_UP_S
            )
            context.clusters[view.key] = reached
            report.check(
                f"{view.key} is active", reached.state is ClusterState.ACTIVE, f"{reached.state}: {reached.reason}"
            )
        a, b = context.clusters.values()
        report.check(
            f"the clusters have different VLANs: {_format_vlans(a)} and {_format_vlans(b)}",
            not VlanSet(a.vlans.values()) & VlanSet(b.vlans.values()),
        )


def _format_vlans(view: ClusterView) -> str:
    return f"{view.key} {VlanSet(view.vlans.values())}"


def check_switches(context: DemoContext) -> None:
    """Compare the VLANs of every switch with the VLANs that the paths between the guests need."""
    report = context.report
    with report.chapter("Each switch's VLANs, as read from the switch"):
        for name in switch_names(context.topology):
            ports = read_switch_vlans(context.lab, name)
            report.print_line(f"{name:<10} " + "  ".join(f"{port}: {vlans}" for port, vlans in ports.items()))
            expected = _expected_vlans(context, name)
            report.check(
                f"{name} carries exactly these VLANs on the ports of the path, and no VLANs on other ports",
                ports == expected,
                str(ports),
            )


def _expected_vlans(context: DemoContext, switch: Name) -> dict[str, str]:
    site = context.topology.site_of[switch]
    uplink = site.attachments[0].port
    host = next(link for link in context.topology.links if site.hosts[0].name in {end.element for end in link.ends})
    ports = [end.port for end in (*host.ends, uplink) if end.element == switch]
    vlans = VlanSet(view.vlans[site.name] for view in context.clusters.values())
    return dict.fromkeys(ports, str(vlans))


def check_connectivity(context: DemoContext) -> None:
    """Ping each cluster's guests from the cluster's first guest. Meanwhile, capture frames on the provider core."""
    report = context.report
    with report.chapter("Guests of one cluster reach each other over the core"), ThreadPoolExecutor() as pool:
        core = context.topology.transports[0]
        for view in context.clusters.values():
            capture = capture_frames(context, pool, core.name, "br0", "icmp or vlan")
            for number in range(2, len(view.spec.guests) + 1):
                ping = ping_from_guest(context, view, 0, f"{NETWORK}{number}", "-c", "4", "-W", "2")
                report.check(f"{view.key}: n1 reaches n{number}: {ping.summary}", ping.succeeded, ping.summary)
            frames = capture.result()
            tagged = [frame for frame in frames if _has_both_tags(frame, core.s_tag, view)]
            report.print_line(tagged[0] if tagged else "no frame with both tags was seen")
            report.check(
                f"on the core {len(tagged)} frames of {view.key} carry both tags: S-tag {core.s_tag} and C-tag "
                f"{next(iter(view.vlans.values()))}",
                bool(tagged),
                "; ".join(frames[:3]) or "no frame at all",
            )


def _has_both_tags(frame: str, s_tag: int | None, view: ClusterView) -> bool:
    c_tag = next(iter(view.vlans.values()))
    return bool(re.search(rf"0x88a8.*vlan {s_tag}, .*vlan {c_tag}, ", frame))


def check_isolation(context: DemoContext) -> None:
    """Send ARP requests from a guest of one cluster, and listen on every segment of both clusters."""
    report = context.report
    sender, other = context.clusters.values()
    with report.chapter("The other cluster's guests receive no frame"), ThreadPoolExecutor() as pool:
        captures = {
            (view.key, guest.host): capture_frames(
                context, pool, guest.host, f"br{vlan}", "arp", "and", "host", ABSENT_ADDRESS
            )
            for view in (sender, other)
            for guest in view.spec.guests
            for vlan in {view.vlans[context.topology.site_of[guest.host].name]}
        }
        ping_from_guest(context, sender, 0, ABSENT_ADDRESS, "-c", "5", "-W", "1")
        report.print_line(f"{sender.key}'s n1 has sent five ARP requests for {ABSENT_ADDRESS} to its segment")
        for (key, host), capture in captures.items():
            received = [frame for frame in capture.result() if ABSENT_ADDRESS in frame]
            if key == sender.key:
                report.check(f"{key} on {host} receives the requests ({len(received)} frames)", bool(received), "none")
            else:
                report.check(f"{key} on {host} receives no request", not received, "; ".join(received))


DEADLINE_S = 6.0
LIMIT_S = 60.0


def check_failed_creation(context: DemoContext) -> None:
    """Disconnect the second site's switch and request a cluster. Check that the cluster fails and is removed."""
    report, lab = context.report, context.lab
    first, disconnected = switch_names(context.topology)[:2]
    with report.chapter(f"A creation fails, because {disconnected} is disconnected"), ThreadPoolExecutor() as pool:
        before = take_snapshot(lab, context.topology)
        active = context.clusters["demo-a"]
        ping = pool.submit(ping_from_guest, context, active, 0, f"{NETWORK}3", "-i", "0.5", "-w", "10", "-q")
        lab.run(disconnected, ("ip", "link", "set", "mgmt0", "down"), check=True)
        report.print_line(
            f"{disconnected}'s management port is down; demo-c is requested, with a deadline of {DEADLINE_S:.0f} s"
        )
        view, vlans = _fail_creation(context, first)
        lab.run(disconnected, ("ip", "link", "set", "mgmt0", "up"), check=True)
        report.print_line(f"{disconnected}'s management port is up again")
        _check_removal(context, view, vlans, before)
        ping_result = ping.result()
        report.check(
            f"demo-a lost no frame during the failed creation: {ping_result.summary}",
            " 0% packet loss" in ping_result.summary,
        )


def _fail_creation(context: DemoContext, first: Name) -> tuple[ClusterView, dict[Name, VlanId]]:
    report = context.report
    view = context.request("demo-c", DEADLINE_S)
    view = context.follow(
        view, lambda current: _confirmed(current, first) or current.state is ClusterState.FAILING, LIMIT_S
    )
    claimed = view.vlans
    vlan = claimed[context.topology.site_of[first].name]
    carried = [port for port, vlans in read_switch_vlans(context.lab, first).items() if str(vlan) in vlans]
    report.check(f"before the failure, {first} carries VLAN {vlan} on {', '.join(carried)}", bool(carried))
    ended = {ClusterState.FAILING, ClusterState.FAILED, ClusterState.ACTIVE}
    view = context.follow(view, lambda current: current.state in ended, LIMIT_S)
    report.check("demo-c failed in time, with a reason", view.state is not ClusterState.ACTIVE, str(view.state))
    report.print_line(f"reason: {view.reason}")
    return view, claimed


def _check_removal(context: DemoContext, view: ClusterView, vlans: dict[Name, VlanId], before: Snapshot) -> None:
    report = context.report
    context.follow(view, lambda current: current.state is ClusterState.FAILED, LIMIT_S)
    after = take_snapshot(context.lab, context.topology)
    report.check(
        "every switch, host and guest is in the same state as before demo-c",
        after == before,
        before.describe_changes(after),
    )
    sites = {site.name: site for site in context.client.sites()}
    report.check(
        f"VLAN {VlanSet(vlans.values())} is free again at every site",
        all(vlan in sites[site].free for site, vlan in vlans.items()),
    )
    for key in context.clusters:
        current = context.follow(
            context.client.cluster(key), lambda current: current.state is ClusterState.ACTIVE, LIMIT_S
        )
        report.check(f"{key} is active", current.state is ClusterState.ACTIVE, str(current.state))


def _confirmed(view: ClusterView, element: str) -> bool:
    return any(
        placement.element == element and placement.progress is PlacementProgress.CONFIRMED
        for placement in view.placements
    )


REMOVAL_LIMIT_S = 60.0


def remove_clusters(context: DemoContext) -> None:
    """Delete both clusters. Compare every element with its state before the first cluster was created."""
    report = context.report
    with report.chapter("Both clusters are deleted"):
        views = [context.client.delete_cluster(key) for key in context.clusters]
        for view in views:
            ended = context.follow(view, lambda current: current.state is ClusterState.RELEASED, REMOVAL_LIMIT_S)
            report.check(f"{ended.key} is released", ended.state is ClusterState.RELEASED, str(ended.state))
        after = take_snapshot(context.lab, context.topology)
        for kind in ("switches", "hosts", "guests", "cores"):
            is_unchanged = getattr(after, kind) == getattr(context.before, kind)
            report.check(_REMOVAL_CLAIMS[kind], is_unchanged, context.before.describe_changes(after))
        report.check(
            "no site has a VLAN ID in use", not any(site.claimed | site.quarantined for site in context.client.sites())
        )


_REMOVAL_CLAIMS = {
    "switches": "no switch port carries any VLAN",
    "hosts": "no host has an additional interface",
    "guests": "no guest runs on any host",
    "cores": "the provider core is in the same state as before",
}


CHAPTERS = (
    create_clusters,
    check_switches,
    check_connectivity,
    check_isolation,
    check_failed_creation,
    run_mpi_program,
    join_from_laptop,
    remove_clusters,
)


DEMO_TIMING = {"connect_timeout": 2, "read_timeout": 3, "retry_most": 2}
"""Settings of SBF, in seconds. These times are shorter than the defaults, so that failures show soon."""


def run_demo(report: DemoReport, bring_up: Callable[[], Lab]) -> bool:
    """Start a lab with ``bring_up``, run all chapters, and remove the lab, even after an error.

    Return whether every check succeeded.
    """
    with report.chapter("The lab starts: three sites with switches and hosts, an 802.1ad core, SBF, and agents"):
        lab = bring_up()
    try:
        _run_chapters(report, lab)
    finally:
        with report.chapter("The lab is taken down"):
            lab.down()
            report.check(
                "no part of the lab remains on this machine", not find_remains(lab.state), str(find_remains(lab.state))
            )
    return report.succeeded


def _run_chapters(report: DemoReport, lab: Lab) -> None:
    services = [state for node in lab.status()["nodes"].values() for state in node["services"].values()]
    report.check(f"all {len(services)} services of the lab run", set(services) == {"running"}, str(services))
    with SbfClient(f"unix://{lab.sbf_socket}") as client:
        context = DemoContext(report, lab, client, client.topology(), take_snapshot(lab, client.topology()))
        for chapter in CHAPTERS:
            chapter(context)
