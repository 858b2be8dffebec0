"""Tests of the playbooks' messages about wrong inventories and unsuitable machines.

Ansible runs in check mode, so the playbooks do not change the machine that runs the tests.
"""

import os
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.installation.ansible_machines import PLAYBOOK, ROOT, ansible_environment

from virtcloud.model.topology import Topology
from virtcloud.model.yaml_document import parse_yaml

LOCAL = {"ansible_connection": "local", "ansible_python_interpreter": "/usr/bin/python3"}
EXAMPLES = sorted((ROOT / "ansible/inventories").glob("*.yml"))


def check(inventory: dict[str, object], folder: Path, *options: str) -> tuple[int, str]:
    file = folder / "inventory.yml"
    environment = {
        **ansible_environment(),
        "PATH": f"{folder}:{os.environ['PATH']}",
        "ANSIBLE_BECOME_ALLOW_SAME_USER": "1",
    }
    archive = folder / "wheels.tar"
    archive.touch()
    inventory_and_archive = {"all": {"vars": {"program_archive": str(archive)}}, **inventory}
    file.write_text(yaml.safe_dump(inventory_and_archive))
    command = (PLAYBOOK, "-i", str(file), str(ROOT / "ansible/site.yml"), "--check", *options)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)  # noqa: S603
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def machines(*names: str, **variables: object) -> dict[str, object]:
    """Return an inventory group. Each name denotes the machine that runs the tests."""
    return {"hosts": {name: {**LOCAL, **variables} for name in names}}


def write_program(folder: Path, name: str, script: str) -> str:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return str(file)


@pytest.mark.parametrize("example", EXAMPLES, ids=[file.stem for file in EXAMPLES])
def test_example_inventories_are_accepted(example: Path, tmp_path: Path) -> None:
    (rules := tmp_path / "prometheus").mkdir()
    (rules / "rules.yml").touch()
    options = ("-e", f"monitoring_source={tmp_path}", "-e", "ansible_ssh_executable=/bin/false")
    _, output = check(yaml.safe_load(example.read_text()), tmp_path, *options)
    assert "Read the user ID" in output, output
    assert "Ansible cannot log in to " in output, output


@pytest.mark.parametrize("example", EXAMPLES, ids=[file.stem for file in EXAMPLES])
def test_the_topology_of_an_example_inventory_matches_its_machines(example: Path) -> None:
    inventory = yaml.safe_load(example.read_text())
    given = {**inventory["sbf"].get("vars", {}), **next(iter(inventory["sbf"]["hosts"].values()))}
    file = ROOT / "ansible" / given["sbf_topology"]
    topology = parse_yaml(file.read_text(), file.name).read(Topology)
    credentials = tomllib.loads(given["sbf_settings"])["credentials"]
    assert given["sbf_pools"].keys() == {site.name for site in topology.sites}
    assert set(list_machines(inventory["guest_hosts"])) == {host.name for site in topology.sites for host in site.hosts}
    assert set(list_machines(inventory["gateways"])) == {row.name for site in topology.sites for row in site.gateways}
    assert credentials.keys() == {switch.credential for site in topology.sites for switch in site.switches}


def list_machines(group: dict[str, Any]) -> Iterator[str]:
    """Yield the names in the topology of a group's machines."""
    yield from (name.partition(".")[0] for name in group.get("hosts", {}))
    for child in group.get("children", {}).values():
        yield from list_machines(child)


@pytest.mark.parametrize(
    ("inventory", "message"),
    [
        (
            {},
            'The inventory\'s group "sbf" must contain a machine, but contains none. Add the machine on which SBF runs',
        ),
        ({"sbf": machines("a", "b")}, 'Add a machine to the group "database", or set sbf_database'),
        ({"sbf": machines("a", "b"), "database": machines("d")}, '"balancers" contains no machine. Add a machine'),
        (
            {"sbf": machines("a"), "database": machines("d", "e")},
            "For a PostgreSQL of your own, set sbf_database instead.",
        ),
        ({"sbf": machines("a"), "balancers": machines("a")}, "on a cannot listen on the same port. Set sbf_port"),
        (
            {"sbf": machines("a", sbf_certificate="a.crt"), "database": machines("d")},
            "Machines without a certificate: d.",
        ),
        (
            {"sbf": machines("a"), "monitoring": machines("m", monitoring_source="/nowhere")},
            "No file /nowhere/prometheus/*.yml exists",
        ),
        (
            {"sbf": machines("a", program_archive="/nowhere.tar")},
            "/nowhere.tar does not exist on the machine that runs Ansible. Write the archive with: make wheels",
        ),
        (
            {"sbf": machines("a", sbf_topology="sites/none.yaml")},
            (
                "sbf_topology names a file that does not exist on the machine that runs Ansible: sites/none.yaml. "
                "Write the file as docs/how-to/describe-your-site.md describes; a relative path begins at "
                f"{ROOT}/ansible. If SBF already has a topology and pools, you can remove sbf_topology from the "
                "inventory instead."
            ),
        ),
    ],
    ids=[
        "empty",
        "no database",
        "no balancer",
        "two databases",
        "port",
        "certificates",
        "no alert rules",
        "no archive",
        "no topology",
    ],
)
def test_a_wrong_inventory_is_refused(inventory: dict[str, object], message: str, tmp_path: Path) -> None:
    code, output = check(inventory, tmp_path)
    assert (code, message in output) == (2, True), output


def test_a_topology_in_the_folder_of_the_role_is_found(tmp_path: Path) -> None:
    """Ansible's module ``copy`` searches in the role, too."""
    _, output = check({"sbf": machines("a", sbf_topology="virtcloud-sbf.service")}, tmp_path)
    assert "names a file that does not exist" not in output
    assert "Read the user ID" in output, output


def test_missing_rights_are_explained(tmp_path: Path) -> None:
    sudo = write_program(tmp_path, "sudo", "echo 'alice is not in the sudoers file.' >&2; exit 1")
    code, output = check({"sbf": machines("a", ansible_become_exe=sudo, ansible_become_flags="")}, tmp_path)
    assert code == 2
    assert "Ansible cannot log in to a, or cannot become root there: " in output
    assert "alice is not in the sudoers file." in output
    assert "add --ask-become-pass" in output


def test_an_old_python_is_refused(tmp_path: Path) -> None:
    write_program(tmp_path, "python3", "echo 3.9")
    sudo = write_program(tmp_path, "sudo", 'while [ "$1" != sh ] && [ "$1" != /bin/sh ]; do shift; done; exec "$@"')
    code, output = check({"sbf": machines("a", ansible_become_exe=sudo)}, tmp_path)
    assert (code, "a has Python 3.9. virtcloud needs Python 3.11 or later: use Debian 12 or 13" in output) == (
        2,
        True,
    ), output
