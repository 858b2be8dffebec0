"""The story, chapter by chapter. Each claim is read from the real thing, never from SBF's own view of it."""

from collections.abc import Callable

from virtcloud.client import SbfClient
from virtcloud.lab.demo import creation, fault, removal, traffic
from virtcloud.lab.demo.report import Report
from virtcloud.lab.demo.stage import Stage
from virtcloud.lab.lab import Lab
from virtcloud.lab.observe import snapshot
from virtcloud.lab.state import remains

CHAPTERS = (creation.create, creation.switches, traffic.together, traffic.apart, fault.cut_off, removal.remove)


DEMO_TIMING = {"connect_timeout": 2, "read_timeout": 3, "retry_most": 2}
"""Seconds for SBF; a switch that is cut off is given up sooner than in earnest."""


def tell(report: Report, bring_up: Callable[[], Lab]) -> bool:
    """Tell the whole story; gives whether every claim was checked and holds. The lab is taken down in any case."""
    with report.chapter("Three sites are built: switches with sshd, an 802.1ad core, hosts with libvirt, SBF, agents"):
        lab = bring_up()
    try:
        _play(report, lab)
    finally:
        with report.chapter("The lab is taken down"):
            lab.down()
            report.claim("nothing of the lab is left on this machine", not remains(lab.state), str(remains(lab.state)))
    return report.holds


def _play(report: Report, lab: Lab) -> None:
    services = [state for node in lab.status()["nodes"].values() for state in node["services"].values()]
    report.claim(f"all its {len(services)} services run", set(services) == {"running"}, str(services))
    with SbfClient(f"unix://{lab.sbf_socket}") as client:
        stage = Stage(report, lab, client, client.topology(), snapshot(lab, client.topology()))
        for chapter in CHAPTERS:
            chapter(stage)
