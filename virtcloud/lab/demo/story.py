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


def tell(report: Report, bring_up: Callable[[], Lab], url: str) -> bool:
    """Tell the whole story; gives whether every claim was checked and holds. The lab is taken down in any case."""
    with report.chapter("Three sites are built: switches with sshd, an 802.1ad core, hosts with libvirt, SBF, agents"):
        lab = bring_up()
        report.claim("SBF, all agents and all switches run", lab.is_whole(), str(lab.status()))
    try:
        with SbfClient(url) as client:
            stage = Stage(report, lab, client, client.topology(), snapshot(lab, client.topology()))
            for chapter in CHAPTERS:
                chapter(stage)
    finally:
        with report.chapter("The lab is taken down"):
            lab.down()
            report.claim("nothing of the lab is left on this machine", not remains(lab.state), str(remains(lab.state)))
    return report.holds
