"""Chapters: two clusters come to be, and what the switches say of it."""

from virtcloud.lab.demo.stage import Stage
from virtcloud.lab.observe import switch_names, switch_vlans
from virtcloud.model.cluster import State
from virtcloud.model.values import Name
from virtcloud.model.views import ClusterView
from virtcloud.model.vlans import VlanSet

SET_UP_S = 60.0


def create(stage: Stage) -> None:
    """Ask for both clusters at once and follow them until they are active."""
    report = stage.report
    with report.chapter("Two clusters of three guests each, one per site, with the same IP addresses"):
        views = [stage.request(key, SET_UP_S) for key in ("demo-a", "demo-b")]
        for view in views:
            reached = stage.follow(view, lambda seen: seen.state not in {State.REQUESTED, State.CONFIGURING}, SET_UP_S)
            stage.clusters[view.key] = reached
            report.claim(f"{view.key} is active", reached.state is State.ACTIVE, f"{reached.state}: {reached.reason}")
        a, b = stage.clusters.values()
        report.claim(
            f"they have VLANs of their own: {_vlans(a)} and {_vlans(b)}",
            not VlanSet(a.vlans.values()) & VlanSet(b.vlans.values()),
        )


def _vlans(view: ClusterView) -> str:
    return f"{view.key} {VlanSet(view.vlans.values())}"


def switches(stage: Stage) -> None:
    """Read every switch and compare it with what lies on the way between the guests."""
    report = stage.report
    with report.chapter("Each switch's VLANs, as read from the switch"):
        for name in switch_names(stage.topology):
            ports = switch_vlans(stage.lab, name)
            report.say(f"{name:<10} " + "  ".join(f"{port}: {vlans}" for port, vlans in ports.items()))
            expected = _expected(stage, name)
            report.claim(
                f"{name} carries exactly that on the ports on the way, nothing elsewhere", ports == expected, str(ports)
            )


def _expected(stage: Stage, switch: Name) -> dict[str, str]:
    """Say which ports of a switch must carry both clusters: those to the site's first host and to the core."""
    site = stage.topology.site_of[switch]
    uplink = site.attachments[0].port
    host = next(link for link in stage.topology.links if site.hosts[0].name in {end.element for end in link.ends})
    ports = [end.port for end in (*host.ends, uplink) if end.element == switch]
    numbers = VlanSet(view.vlans[site.name] for view in stage.clusters.values())
    return dict.fromkeys(ports, str(numbers))
