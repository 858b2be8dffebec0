"""Tests of a restore on another machine, with agents' reconcilers and an emulated switch."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from compatibility.installation import HOSTS, agent, await_, running, site
from compatibility.previous import THIS
from support.emulators.switch_device import EmulatedSwitch
from support.migrated import create_sqlite

from virtcloud.client import SbfClient
from virtcloud.model.cluster import ClusterRequest, ClusterSpec
from virtcloud.model.element_views import Pool
from virtcloud.model.guest_spec import Guest
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name
from virtcloud.model.views import ClusterView
from virtcloud.model.vlans import VlanSet

SBF = ("-c", "from sbf_command import main; main()")


@dataclass
class TwoMachines:
    """A switch, two hosts with agents, and the settings of an SBF.

    All agents call the same address. At this address, the former SBF answers before the restore, and the restored SBF
    after the restore.
    """

    folder: Path
    switch: EmulatedSwitch
    stack: ExitStack

    def sbf(self, *words: str) -> subprocess.CompletedProcess[str]:
        done = THIS.run(*SBF, *words, "--config", str(self.folder / "sbf.toml"))
        assert done.returncode == 0, done
        return done

    def count_refusals(self) -> int:
        return sum((self.folder / f"{host}.log").read_text().count("sbf_refused") for host in HOSTS)

    def carried(self) -> dict[str, set[int]]:
        return {port: {*vlans} for port, vlans in self.switch.carrying().items() if vlans}


@pytest.fixture
def machines() -> Iterator[TwoMachines]:
    with ExitStack() as stack:
        folder, switch = stack.enter_context(site())
        for name in ("sbf", "restored"):  # creates the tables directly, because migrations take seconds
            create_sqlite(f"sqlite:///{folder}/{name}.db")
        yield TwoMachines(folder, switch, stack)


def use_other_database(folder: Path) -> None:
    path = folder / "sbf.toml"
    path.write_text(path.read_text().replace("sbf.db", "restored.db"))


def test_agents_and_switches_of_a_restored_sbf_drop_unknown_clusters(machines: TwoMachines) -> None:
    """Cluster ``ended`` ended after the backup, so the restored SBF sets it up again. ``kept`` never ended.

    ``unknown`` was created after the backup, so the restored SBF removes it. SBF had configured the switch port of
    ``brno-h2`` for ``unknown``, but the backup does not show this.
    """
    folder, backup = machines.folder, str(machines.folder / "a.backup")
    url = f"unix://{folder}/sbf.sock"
    for host in HOSTS:
        machines.stack.enter_context(agent(THIS, url, host, folder))
    sbf = machines.stack.enter_context(SbfClient(url))
    with running(THIS, folder):
        sbf.put_topology(Topology.model_validate_json((folder / "topology.yaml").read_text()))
        sbf.put_pool("brno", Pool(vlans=VlanSet.parse("100-102")))
        create(sbf, "kept", "brno-h1")
        create(sbf, "ended", "brno-h1")
        machines.sbf("backup", backup)
        carried = machines.carried()
        sbf.delete_cluster("ended")
        await_(lambda: sbf.cluster("ended").state == "released")
        assert create(sbf, "unknown", "brno-h2").vlans == {"brno": 102}
    use_other_database(folder)
    refusals = machines.count_refusals()
    assert "elements must be read" in machines.sbf("restore", backup).stdout
    with running(THIS, folder):
        await_(lambda: {view.state for view in sbf.clusters()} == {"active"})
        assert {view.key for view in sbf.clusters()} == {"kept", "ended"}
        assert machines.carried() == carried
        assert create(sbf, "other", "brno-h1").vlans == {"brno": 102}
    assert machines.count_refusals() == refusals


def create(sbf: SbfClient, key: str, host: str) -> ClusterView:
    guests = (Guest(name=Name("g1"), host=Name(host), image=Name("busybox")),)
    sbf.put_cluster(key, ClusterRequest(spec=ClusterSpec(owner="eva", guests=guests)))
    await_(lambda: sbf.cluster(key).state == "active")
    return sbf.cluster(key)
