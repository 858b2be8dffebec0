"""Chapter: all clusters are deleted, and the elements are asked whether anything is left."""

from virtcloud.lab.demo.stage import Stage
from virtcloud.lab.observe import snapshot
from virtcloud.model.cluster import State

LIMIT_S = 60.0


def remove(stage: Stage) -> None:
    """Delete both clusters and compare every element with what it carried before the first one."""
    report = stage.report
    with report.chapter("Both clusters are deleted"):
        views = [stage.client.delete_cluster(key) for key in stage.clusters]
        for view in views:
            ended = stage.follow(view, lambda seen: seen.state is State.RELEASED, LIMIT_S)
            report.claim(f"{ended.key} is released", ended.state is State.RELEASED, str(ended.state))
        after = snapshot(stage.lab, stage.topology)
        for what in ("switches", "hosts", "guests", "cores"):
            same = getattr(after, what) == getattr(stage.before, what)
            report.claim(f"{_NOTHING[what]}", same, stage.before.differs(after))
        report.claim(
            "no site has a number in use", not any(site.claimed | site.quarantined for site in stage.client.sites())
        )


_NOTHING = {
    "switches": "no switch port carries any VLAN",
    "hosts": "no host has an interface more than before",
    "guests": "no guest runs on any host",
    "cores": "the provider core is configured as it was",
}
