import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from ansible_machines import NoMachinesError, Site, check_requirements, running_machines

TOPOLOGY = """
name: one-site
sites:
  - name: brno
    switches:
      - {name: brno-sw1, platform: linux_bridge, address: 10.99.0.20, credential: site-brno, ports: [p1, p2]}
    hosts:
      - {name: brno-h1, ports: [host0]}
    gateways:
      - {name: brno-gw, ports: [host0], vpn: {address: 10.99.0.13}}
links:
  - {a: "brno-h1:host0", b: "brno-sw1:p1"}
  - {a: "brno-gw:host0", b: "brno-sw1:p2"}
"""
SETTINGS = """
[credentials.site-brno]
username = "virtcloud"
password = {file = "/etc/virtcloud/site-brno.password"}
"""
ADDRESSES = {"sbf1": "10.99.0.11", "brno-h1": "10.99.0.12", "brno-gw": "10.99.0.13"}
ALIASES = {"sbf2": "brno-gw", "services": "brno-h1"}
"""The names of the same machines in test_replicas.py. A boot takes longer than an uninstallation."""
# The kernel of the machine that runs these tests may lack 802.1Q; the lab's tests have a kernel with it.
ACCEPTED = ["802.1Q interfaces, bridges, veth", "bridged frames stay out of the packet filter"]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The machines of one site, with nothing installed, and the inventory that describes them."""
    try:
        check_requirements()
    except NoMachinesError as error:
        pytest.skip(f"NOT TESTED: {error}")
    folder = tmp_path_factory.mktemp("site")
    archive = folder / "wheels.tar"
    subprocess.run([Path("setup/wheels").absolute(), archive], check=True, capture_output=True)  # noqa: S603
    topology = folder / "topology.yaml"
    topology.write_text(TOPOLOGY)
    with ExitStack() as stack:
        try:
            site = stack.enter_context(running_machines(folder, ADDRESSES, ALIASES))
        except NoMachinesError as error:
            pytest.skip(f"NOT TESTED: {error}")
        site.inventory.update(write_inventory(site, archive, topology))
        yield site


@pytest.fixture(scope="session")
def installed(site: Site) -> Site:
    """The site after ``site.yml``, which was killed in the middle at first."""
    for task in (
        "certificate : Write the request",
        "program : Install the Python packages",
        "sbf : Install the service",
    ):
        site.kill_at("site.yml", task)
    play = site.play("site.yml")
    assert play.returncode == 0, play.stdout[-6000:] + play.stderr
    return site


def write_inventory(site: Site, archive: Path, topology: Path) -> dict[str, Any]:
    """Return an inventory with SBF, one host and one gateway."""
    accepted = {"agent_accepted_faults": ACCEPTED}
    (site.folder / "site-brno.password").write_text("secret of the switch\n")
    return {
        "all": {"vars": {**site.ssh_variables(), "program_archive": str(archive)}},
        "sbf": {
            "hosts": {
                "sbf1": {
                    "ansible_host": ADDRESSES["sbf1"],
                    "sbf_topology": str(topology),
                    "sbf_pools": {"brno": "100-199"},
                    "sbf_settings": SETTINGS,
                    "sbf_files": [{"src": str(site.folder / "site-brno.password"), "name": "site-brno.password"}],
                }
            }
        },
        "guest_hosts": {"hosts": {"brno-h1": {"ansible_host": ADDRESSES["brno-h1"], **accepted}}},
        "gateways": {"hosts": {"brno-gw": {"ansible_host": ADDRESSES["brno-gw"], **accepted}}},
    }
