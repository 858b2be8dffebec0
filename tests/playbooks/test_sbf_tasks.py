"""Tests of the tasks that check the database, load the topology and the pools, and create tokens.

If agents or databases show that a former SBF was installed, the tasks load no topology, because the new SBF would not
know the clusters of the former SBF.

Ansible runs the tasks on the machine that runs the tests, with other paths. Ansible changes only the test's SBF and
files in the test's folder.
"""

import json
import os
import pwd
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.installation.ansible_machines import PLAYBOOK, ROOT, ansible_environment
from support.migrated import create_sqlite
from support.programs.sbf_process import SbfProcess

ROLES = ROOT / "ansible/roles"
CLI = str(ROOT / ".venv/bin/virtcloud")
LOCAL = {
    "ansible_connection": "local",
    "ansible_python_interpreter": "/usr/bin/python3",
    "ansible_become": False,
}
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


def load(
    folder: Path,
    pools: dict[str, str],
    agents: Sequence[str] = (),
    agent: Mapping[str, object] = LOCAL,
    **options: object,
) -> subprocess.CompletedProcess[str]:
    """Run the tasks that load the topology and the pools. ``agents`` are machines of the inventory."""
    topology = {"sbf_topology": str(folder / "source.yaml"), "sbf_pools": pools}
    database = {"sbf_database": f"sqlite:///{folder}/sbf.db", "sbf_first_installation": False}
    return run_tasks(
        "sbf/tasks/topology.yml", folder, {**topology, **database, **options}, {name: dict(agent) for name in agents}
    )


def run_tasks(
    name: str, folder: Path, variables: Mapping[str, object], agents: Mapping[str, object] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a file of tasks, named relative to the folder of roles.

    The tasks find settings files in ``folder``, and data files in its subfolder ``data``.
    """
    text = (ROLES / name).read_text()
    paths = {"/opt/virtcloud/bin/virtcloud": CLI, "/run/virtcloud": str(folder), "/etc/virtcloud": str(folder)}
    for path, replaced in {**paths, "paths: /var/lib/virtcloud": f"paths: {folder}/data"}.items():
        text = text.replace(path, replaced)
    tasks = {"name": "Load", "hosts": "sbf", "gather_facts": False, "tasks": yaml.safe_load(text)}
    inventory = {"sbf": {"hosts": {"sbf1": {**LOCAL, **variables}}}, "guest_hosts": {"hosts": dict(agents or {})}}
    (folder / "inventory.yml").write_text(yaml.safe_dump(inventory))
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


def test_a_run_sets_the_pools_that_an_earlier_run_omitted(folder: Path) -> None:
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


def test_no_topology_is_loaded_while_sbf_does_not_answer(tmp_path: Path) -> None:
    (tmp_path / "source.yaml").write_text(yaml.safe_dump(TOPOLOGY))
    done = load(tmp_path, {})
    assert done.returncode != 0
    assert not (tmp_path / "topology.yaml").exists()


def refuse(folder: Path, **options: Any) -> str:
    """Run the tasks that load the topology, and return the refusal. Check that no topology was loaded."""
    done = load(folder, {"brno": "100-199", "praha": "200-299"}, **options)
    assert (done.returncode, (folder / "topology.yaml").exists()) == (2, False), done.stdout + done.stderr
    return " ".join(done.stdout.split())


def test_no_topology_is_loaded_if_agents_belong_to_another_sbf(folder: Path) -> None:
    """Only one of the two agents has a token of this SBF."""
    call(folder, "token", "create", "brno-h2", "--role", "agent")
    (folder / "agent.token").touch()
    output = refuse(folder, agents=["brno-h1", "brno-h2.example.org"])
    assert (
        "this is not the first installation: brno-h1 has an agent with a token that SBF did not create. With" in output
    )
    assert "restore a backup (sbf restore FILE)" in output


@pytest.mark.parametrize("name", ["sbf.db.converted", "sbf.db"], ids=["moved away", "SQLite before PostgreSQL"])
def test_no_topology_is_loaded_if_a_former_database_exists(folder: Path, name: str) -> None:
    (folder / "data").mkdir()
    (folder / "data" / name).touch()
    assert f"this is not the first installation: {folder}/data/{name} exists." in refuse(folder)


def test_lock_files_do_not_count_as_a_former_database(folder: Path) -> None:
    (folder / "data").mkdir()
    for name in ("sbf.db.lock", "sbf.db.retention.lock"):
        (folder / "data" / name).touch()
    done = load(folder, {"brno": "100-199"})
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("unreachable", [True, False], ids=["unreachable", "without Python"])
def test_a_first_installation_does_not_need_the_agents_machines(folder: Path, unreachable: bool) -> None:
    (ssh := folder / "ssh").write_text("#!/bin/sh\nexit 255\n")  # ssh's exit code if it cannot connect
    ssh.chmod(0o755)
    no_ssh = {"ansible_connection": "ssh", "ansible_ssh_executable": str(ssh)}
    fault = no_ssh if unreachable else {"ansible_python_interpreter": "/nowhere/python3"}
    done = load(folder, {"brno": "100-199"}, agents=["brno-h1"], agent={**LOCAL, **fault})
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_pools(folder) == ["100-199", ""]


def test_a_topology_is_loaded_if_agents_belong_to_this_sbf(folder: Path) -> None:
    """A run without ``sbf_topology`` created the tokens. The machine and its element have different names."""
    call(folder, "token", "create", "brno-h1", "--role", "agent")
    (folder / "agent.token").touch()
    done = load(folder, {"brno": "100-199"}, agents=["node7"], agent={**LOCAL, "agent_element": "brno-h1"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_pools(folder) == ["100-199", ""]


def test_an_administrator_can_declare_a_first_installation(folder: Path) -> None:
    (folder / "agent.token").touch()
    assert load(folder, {"brno": "100-199"}, agents=["brno-h1"], sbf_first_installation=True).returncode == 0
    assert read_pools(folder) == ["100-199", ""]


@pytest.mark.parametrize("first", [True, False], ids=["declared", "another run"])
def test_only_a_first_installation_replaces_a_former_sbfs_token(folder: Path, first: bool) -> None:
    (file := folder / "agent.token").write_text("vc_former_secret\n")
    owner = pwd.getpwuid(os.getuid()).pw_name
    token = {"name": "brno-h1", "role": "agent", "file": str(file), "owner": owner}
    variables = {"agent_token": token, "sbf_first_installation": first}
    done = run_tasks("agent/tasks/token.yml", folder, variables)
    assert done.returncode == 0, done.stdout + done.stderr
    created = [token["id"] for token in json.loads(call(folder, "token", "list", "--role", "agent", "--json"))]
    assert created == ([file.read_text().split("_")[1]] if first else [])
    assert (file.read_text() == "vc_former_secret\n") is not first


POSTGRESQL = "postgresql://sbf@db/sbf"


@pytest.mark.parametrize(
    ("former", "new", "refusal"),
    [
        (None, POSTGRESQL, ""),
        ("", "sqlite:////var/lib/virtcloud/sbf.db", ""),
        (
            "",
            POSTGRESQL,
            "uses the database sqlite:////var/lib/virtcloud/sbf.db, but the inventory names postgresql://",
        ),
        (f'database = "{POSTGRESQL}?sslmode=require"', f"{POSTGRESQL}?sslmode=verify-full", ""),
        (
            'database="postgresql://sbf:secret@old/sbf"',
            POSTGRESQL,
            "the database postgresql://sbf@old/sbf, but the inventory names postgresql://sbf@db/sbf.",
        ),
    ],
    ids=["first installation", "default", "from SQLite", "other options", "another server"],
)
def test_settings_with_another_database_are_not_replaced(
    former: str | None, new: str, refusal: str, tmp_path: Path
) -> None:
    if former is not None:
        (tmp_path / "sbf.toml").write_text(f'listen = "[::]:8800"\n{former}\n[log]\n')
    done = run_tasks("sbf/tasks/moved_database.yml", tmp_path, {"sbf_database": f"{new}\n"})
    output = " ".join(done.stdout.split())
    assert (done.returncode, refusal in output) == (2 if refusal else 0, True), output
