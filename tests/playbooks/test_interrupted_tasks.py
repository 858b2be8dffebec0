"""Tests of tasks that complete what an interrupted run of a playbook left.

Ansible runs the tasks of a role on the machine that runs the tests, with other paths. It changes only an SBF of the
test, and files in the folder of the test.
"""

import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml
from ansible_machines import PLAYBOOK, ROOT, ansible_environment
from migrated import create_sqlite
from sbf_process import SbfProcess

ROLES = ROOT / "ansible/roles"
CLI = str(ROOT / ".venv/bin/virtcloud")
LOCAL = {"ansible_connection": "local", "ansible_python_interpreter": "/usr/bin/python3"}
TOPOLOGY = {
    "name": "two-sites",
    "sites": [
        {"name": site, "hosts": [{"name": f"{site}-h1", "ports": ["data0"]}], "switches": [
            {"name": f"{site}-sw1", "platform": "cisco_ios", "address": "192.0.2.10", "ports": ["p1"]}
        ]}
        for site in ("brno", "praha")
    ],
    "links": [{"a": f"{site}-h1:data0", "b": f"{site}-sw1:p1"} for site in ("brno", "praha")],
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of an SBF without a topology, with the socket ``sbf.sock`` and a file with a topology."""
    database = f"sqlite:///{tmp_path}/sbf.db"
    create_sqlite(database)
    config = tmp_path / "sbf.toml"
    config.write_text(f'listen = "127.0.0.1:0"\nsocket = "{tmp_path}/sbf.sock"\ndatabase = "{database}"\n')
    (tmp_path / "source.yaml").write_text(yaml.safe_dump(TOPOLOGY))
    with SbfProcess("serve", "--config", str(config), stderr=subprocess.PIPE) as process:
        try:
            process.read_address()
            yield tmp_path
        finally:
            process.kill()


def load(folder: Path, pools: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the tasks that load the topology and the pools."""
    text = (ROLES / "sbf/tasks/topology.yml").read_text()
    text = text.replace("/opt/virtcloud/bin/virtcloud", CLI).replace("/run/virtcloud", str(folder))
    text = text.replace("/etc/virtcloud", str(folder))
    variables = {**LOCAL, "sbf_topology": str(folder / "source.yaml"), "sbf_pools": pools}
    tasks = {"name": "Load", "hosts": "sbf", "gather_facts": False, "tasks": yaml.safe_load(text)}
    (folder / "inventory.yml").write_text(yaml.safe_dump({"sbf": {"hosts": {"sbf1": variables}}}))
    (folder / "play.yml").write_text(yaml.safe_dump([tasks]))
    command = (PLAYBOOK, "-i", str(folder / "inventory.yml"), str(folder / "play.yml"))
    return subprocess.run(command, capture_output=True, text=True, env=ansible_environment(), check=False)  # noqa: S603


def call(folder: Path, *words: str) -> str:
    command = (CLI, "--url", f"unix://{folder}/sbf.sock", *words)
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
    return done.stdout


def read_pools(folder: Path, sites: Sequence[str] = ("brno", "praha")) -> list[str]:
    return [json.loads(call(folder, "pool", "show", site, "--json"))["pool"] for site in sites]


def test_pools_are_set_after_a_run_that_set_only_the_topology(folder: Path) -> None:
    call(folder, "topology", "set", "--yes", str(folder / "source.yaml"))
    call(folder, "pool", "set", "--yes", "praha", "300-310")
    done = load(folder, {"brno": "100-199", "praha": "200-299", "plzen": "100-199"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_pools(folder) == ["100-199", "300-310"]


def test_a_refused_pool_is_set_by_the_next_run(folder: Path) -> None:
    reserved_by_ios = "1000-1010"
    assert load(folder, {"brno": "100-199", "praha": reserved_by_ios}).returncode != 0
    assert read_pools(folder) == ["100-199", ""]
    assert load(folder, {"brno": "100-199", "praha": "200-299"}).returncode == 0
    assert read_pools(folder) == ["100-199", "200-299"]
    assert "changed=0" in load(folder, {"brno": "100-199", "praha": "200-299"}).stdout


def test_no_topology_is_loaded_into_an_sbf_that_does_not_answer(tmp_path: Path) -> None:
    (tmp_path / "source.yaml").write_text(yaml.safe_dump(TOPOLOGY))
    done = load(tmp_path, {})
    assert done.returncode != 0
    assert not (tmp_path / "topology.yaml").exists()
