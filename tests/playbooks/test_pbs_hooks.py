"""Tests of hooks that Ansible installs on a machine with a real OpenPBS server and on a host with a MoM.

Debian contains no OpenPBS. The machines get a copy of this machine's /opt/pbs, with the libraries that OpenPBS needs.
"""

import json
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.installation import access_link
from support.installation.ansible_machines import SUITE, Site, count_changes

OPENPBS = Path("/opt/pbs")
pytestmark = [
    pytest.mark.pbs,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not (OPENPBS / "bin/qmgr").exists(), reason="NO OPENPBS in /opt/pbs: see docs/how-to/get-openpbs.md"
    ),
    # OpenPBS's server needs the Python version of the Debian release on which OpenPBS was built. Other releases lack
    # this version.
    pytest.mark.skipif(
        platform.freedesktop_os_release().get("VERSION_CODENAME") != SUITE,
        reason=f"NO OPENPBS for {SUITE}: /opt/pbs was built on this machine's Debian",
    ),
]
ADDRESSES = {"sbf1": "10.99.0.11", "brno-h1": "10.99.0.12", "pbs1": "10.99.0.13"}
TOPOLOGY = """
name: one-site
sites:
  - name: brno
    switches:
      - {name: brno-sw1, platform: cisco_ios, address: SWITCH, credential: site-brno, ports: [GigabitEthernet1/0/1]}
    hosts:
      - {name: brno-h1, ports: [data0]}
links:
  - {a: "brno-h1:data0", b: "brno-sw1:GigabitEthernet1/0/1", access: true}
"""
CLI = "virtcloud --url unix:///run/virtcloud/sbf.sock"
# Checks that may fail here: the kernel may lack 802.1Q, and may pass bridged frames through the packet filter.
ACCEPTED = ["802.1Q interfaces, bridges, veth", "bridged frames stay out of the packet filter"]
PBS_CONF = """PBS_SERVER=pbs1
PBS_EXEC=/opt/pbs
PBS_HOME=/var/spool/pbs
PBS_START_SERVER={server}
PBS_START_SCHED={server}
PBS_START_COMM={server}
PBS_START_MOM={mom}
"""
STATUS = "/opt/virtcloud/bin/virtcloud pbs status --json"
LIST_HOOKS = "/opt/pbs/bin/qmgr -c 'list hook' | awk '/^Hook/ {print $2}'"


def copy_openpbs(site: Site, machine: str) -> None:
    """Copy this machine's OpenPBS to a running machine, with the libraries that the machine lacks."""
    root = site.folder / machine / "root"
    shutil.copytree(OPENPBS, root / "opt/pbs", symlinks=True)
    programs = [str(file) for folder in ("bin", "sbin") for file in (OPENPBS / folder).iterdir()]
    linked = subprocess.run(["/usr/bin/ldd", *programs], capture_output=True, text=True, check=False)  # noqa: S603 - our own
    for library in {line.split()[2] for line in linked.stdout.splitlines() if "=> /" in line}:
        if not library.startswith(str(OPENPBS)) and not (copy := root / library.lstrip("/")).exists():
            shutil.copy(library, copy)


def start_openpbs(site: Site, machine: str, *, server: bool) -> None:
    copy_openpbs(site, machine)
    conf = PBS_CONF.format(server=int(server), mom=int(not server))
    part = "server" if server else "execution"
    postinstall = f'/opt/pbs/libexec/pbs_postinstall {part} "$version" /opt/pbs /var/spool/pbs "" 0'
    site.read(
        machine,
        f"printf %s '{conf}' >/etc/pbs.conf; version=$(/opt/pbs/bin/qstat --version | sed 's/.*= //'); "
        f"{postinstall} && /opt/pbs/libexec/pbs_init.d start",
    )


@pytest.fixture(scope="module")
def described(site: Site) -> Iterator[Site]:
    """The machines with a running OpenPBS. The inventory contains SBF, one host and OpenPBS's server."""
    start_openpbs(site, "pbs1", server=True)
    start_openpbs(site, "brno-h1", server=False)
    site.read("pbs1", "/opt/pbs/bin/qmgr -c 'create node brno-h1'")
    access_link.prepare_host(site, "brno-h1")
    topology = site.folder / "topology.yaml"
    sbf = {
        "sbf_topology": str(topology),
        "sbf_pools": {"brno": "100-199"},
        "sbf_settings": access_link.SETTINGS,
        "sbf_files": access_link.write_secrets(site),
    }
    groups: dict[str, tuple[str, dict[str, Any]]] = {
        "sbf": ("sbf1", sbf),
        "guest_hosts": ("brno-h1", {"agent_accepted_faults": ACCEPTED, "agent_settings": access_link.AGENT_SETTINGS}),
        "pbs_server": ("pbs1", {}),
    }
    for group, (name, variables) in groups.items():
        site.inventory[group] = {"hosts": {name: {"ansible_host": ADDRESSES[name], **variables}}}
    with access_link.running_switch(site) as switch:
        topology.write_text(TOPOLOGY.replace("SWITCH", switch))
        yield site


@pytest.fixture(scope="module")
def installed(described: Site) -> Site:
    """Run ``site.yml`` and kill it when it installs the hooks, then run it to the end."""
    described.kill_at("site.yml", "pbs_hooks : Install the hooks")
    play = described.play("site.yml")
    assert play.returncode == 0, play.stdout[-6000:] + play.stderr
    return described


def test_check_mode_installs_no_hook(described: Site) -> None:
    assert count_changes(described.play("site.yml", "--check", "--diff"))["pbs1"] > 0
    assert "virtcloud" not in described.read("pbs1", f"{LIST_HOOKS}; ls /opt /etc")


def test_status_reports_a_sound_installation(installed: Site) -> None:
    await_soundness = f"for i in $(seq 90); do {STATUS} >/tmp/status && break; sleep 1; done; cat /tmp/status"
    found = json.loads(installed.read("pbs1", await_soundness))
    assert [check for check in found if not check["good"]] == []
    assert {check["subject"] for check in found} >= {"hosts", "copies on hosts", "reconciliation"}


def test_a_second_run_changes_nothing(installed: Site) -> None:
    assert set(count_changes(installed.play("site.yml")).values()) == {0}


def test_check_mode_announces_a_changed_setting_of_the_hooks(installed: Site) -> None:
    installed.inventory["pbs_server"]["hosts"]["pbs1"]["pbs_hooks_settings"] = {"mom": {"patience": 299}}
    checked = count_changes(installed.play("site.yml", "--check", "--diff"))
    settings = installed.read("pbs1", "/opt/pbs/bin/qmgr -c 'export hook virtcloud_mom application/x-config default'")
    done = count_changes(installed.play("site.yml"))
    assert '"patience": 299' not in settings
    assert checked == done == {"pbs1": 1, "sbf1": 0, "brno-h1": 0, "localhost": 0}


def test_the_installed_hook_explains_a_wrong_request(installed: Site) -> None:
    submit = "/opt/pbs/bin/qsub -l vcluster=image=debian -- /bin/hostname"
    done = installed.run("pbs1", f"useradd --create-home alice; su - alice -c '{submit}'")
    assert (done.returncode, done.stderr) == (32, "qsub: vcluster: use -l select=N:ncpus=…\n")


def test_a_job_gets_its_cluster(installed: Site) -> None:
    access_link.add_image(installed, "sbf1", CLI)
    (job := installed.folder / "pbs1/root/home/alice/job.sh").write_text("#!/bin/sh\ncp $VCLUSTER_HOSTS hosts\n")
    job.chmod(0o755)
    options = "-W block=true -k oe -l select=1:ncpus=1 -l walltime=10:00 -l vcluster=image=busybox"
    with access_link.agent_with_containers(installed, "brno-h1"):
        installed.read("brno-h1", "useradd --create-home alice")
        installed.read("pbs1", f"su - alice -c '/opt/pbs/bin/qsub {options} job.sh'")
        installed.read("sbf1", f"until [ \"$({CLI} cluster list --json)\" = '[]' ]; do sleep 1; done")
        assert installed.read("brno-h1", "cat ~alice/hosts").split() == ["10.0.0.1", "g1"]


def test_uninstalling_leaves_openpbs_without_hooks(installed: Site) -> None:
    for _ in range(2):
        count_changes(installed.play("uninstall.yml", "-e", "uninstall_data=true"))
    assert "virtcloud" not in installed.read("pbs1", LIST_HOOKS)
    files = "find / -xdev -iname '*virtcloud*' -not -path '/var/spool/pbs/*'; pgrep -a -x virtcloud; true"
    assert installed.read("pbs1", files) == ""
