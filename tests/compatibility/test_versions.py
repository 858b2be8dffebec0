"""Tests of SBF, agents, hooks, command lines and databases of different versions (docs/decisions/0040)."""

import getpass
import json
import sqlite3
from pathlib import Path

import pytest
import yaml
from compatibility.installation import Installation, agent_socket, await_, site, standing
from compatibility.previous import THIS, Version
from support.batch_fakes.server_hook import ServerHook

from virtcloud.testing.fakepbs import HookEvent, HookJob, run_hook

CREATE = ("--host", "brno-h1", "--host", "brno-h2", "--image", "busybox", "--network", "10.0.0.0/24")
READING = [
    ("site", "list"),
    ("site", "show", "brno"),
    ("site", "verify", "brno"),
    ("pool", "show", "brno"),
    ("element", "list"),
    ("element", "show", "brno-sw1"),
    ("element", "show", "brno-h1"),
    ("element", "diff", "brno-sw1", "--read"),
    ("topology", "show"),
    ("cluster", "list", "--ended"),
    ("cluster", "create", "other", *CREATE, "--dry-run"),
    ("quota", "set", "alice", "--clusters", "2"),
    ("quota", "show", "alice"),
    ("token", "list"),
    ("whoami",),
    ("audit",),
]
GUEST = {
    "name": "g1",
    "image": "a",
    "memory_mb": 64,
    "cpus": 1,
    "mac": "02:00:00:00:00:01",
    "addresses": ["10.0.0.1/24"],
}
SEGMENT = {"id": "1", "key": "demo", "vlan": 100, "port": "eth0", "guests": [GUEST]}
DIGEST = """
from virtcloud.agent.difference import digest
from virtcloud.model.wanted import Segment
segment = Segment.model_validate({segment!r})
print(digest(segment, segment.guests[0]))
"""
BUNDLE = """
try:
    # Version 0.1 has this module; the present version does not. Try this import first, because a process of
    # version 0.1 can also import the present package pbs_hooks.
    from virtcloud.pbs.bundle import bundle
except ModuleNotFoundError:
    from pbs_hooks.bundle import bundle_hook as bundle
print(bundle('server'))
"""


@pytest.fixture(params=["old_peers", "old_sbf"])
def mixed(request: pytest.FixtureRequest) -> Installation:
    made: Installation = request.getfixturevalue(request.param)
    return made


def test_a_cluster_becomes_active_and_is_extended_and_released(mixed: Installation) -> None:
    assert mixed.json("cluster", "create", "life", *CREATE)["state"] == "active"
    (number,) = mixed.json("cluster", "show", "life")["vlans"].values()
    carrying = tuple(port for port, vlans in mixed.switch.carrying().items() if number in vlans)
    assert carrying == tuple(mixed.switch.port_names[:2])
    shown = mixed.cli("cluster", "show", "life")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert mixed.json("cluster", "extend", "life", "8h")["state"] == "active"
    assert mixed.json("cluster", "delete", "life")["state"] == "released"


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_commands_read_the_answers_of_another_version(mixed: Installation, words: tuple[str, ...]) -> None:
    assert mixed.cli(*words, "--json").stderr == ""


def test_an_old_client_prints_why_topology_set_fails(old_peers: Installation) -> None:
    changed = yaml.safe_load(old_peers.topology.read_text()) | {"name": "two"}
    path = old_peers.folder / "changed.yaml"
    path.write_text(yaml.safe_dump(changed))
    done = old_peers.cli("topology", "set", str(path))
    assert done.returncode == 1
    assert "expected If-Match with the version that was read before the change" in done.stderr


def test_an_old_client_treats_a_new_problem_as_its_base(old_peers: Installation) -> None:
    """``beyond-limit`` is new in 0.2. Its base type is ``bad-input``, for which the old client exits with code 2."""
    sharing = [word for number in range(257) for word in ("--share", f"user{number}")]
    done = old_peers.cli("cluster", "create", "large", *CREATE, *sharing)
    assert (done.returncode, "spec.shares_with: expected at most 256, got 257" in done.stderr) == (2, True), done


def test_a_client_of_an_old_sbf_prints_what_to_upgrade(old_sbf: Installation) -> None:
    done = old_sbf.cli("pool", "set", "brno", "100-150")
    assert done.returncode == 1
    assert "it is older than this client, virtcloud 0.3.0; upgrade SBF first" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("cluster", "list", "--state", "failed"),
        ("cluster", "list", "--site", "brno"),
        ("element", "list", "--troubled"),
        ("token", "list", "--role", "agent"),
        ("audit", "--who", "eva"),
        ("audit", "--request", "a1"),
    ],
    ids=" ".join,
)
def test_a_filter_that_an_old_sbf_ignores_is_refused(old_sbf: Installation, words: tuple[str, ...]) -> None:
    """Without a refusal, the list would contain all clusters, and a script could delete them."""
    done = old_sbf.cli(*words)
    assert (done.returncode, done.stdout) == (1, "")
    assert "it is older than this client, virtcloud 0.3.0; upgrade SBF first" in done.stderr


def test_guests_without_addresses_at_an_old_sbf_are_reported(old_sbf: Installation) -> None:
    done = old_sbf.cli("cluster", "create", "bare", "--host", "brno-h1", "--image", "busybox", "--no-wait")
    assert (done.returncode, "the guests of cluster bare have no addresses" in done.stderr) == (0, True), done
    assert old_sbf.json("cluster", "delete", "bare")["state"] == "released"


def test_a_hook_works_with_an_sbf_of_another_version(mixed: Installation) -> None:
    program = mixed.peer.run("-c", BUNDLE).stdout
    settings = {"hosts": {"n1": "brno-h1", "n2": "brno-h2"}}
    hook = ServerHook(mixed.url, settings, patient=True, program=program)
    started = hook.start("image=debian12:subnet=10.0.0.0/24", key="1.pbssrv")
    assert started.accepted, started
    await_(lambda: mixed.json("cluster", "show", "1.pbssrv")["state"] == "active")
    assert hook.start("image=debian12:net=nobody", key="2.pbssrv").message == (
        "vcluster: network 'nobody' is not running; the job will be tried again"
    )
    assert hook.end(1, key="1.pbssrv").accepted
    assert mixed.json("cluster", "wait", "1.pbssrv", "--for", "gone")["state"] == "released"


@pytest.mark.parametrize("hook_is_old", [True, False])
def test_a_hook_works_with_an_agent_of_another_version(
    old_peers: Installation, previous: Version, tmp_path: Path, hook_is_old: bool
) -> None:
    hook, agent = (previous, THIS) if hook_is_old else (THIS, previous)
    key, user = f"{7 + hook_is_old}.pbssrv", getpass.getuser()
    made = old_peers.json("cluster", "create", key, *CREATE[2:], "--owner", user, "--attempt", "1")
    assert made["state"] == "active"
    attributes: dict[str, str | int] = {"run_version": 1, "euser": user, "substate": 41, "exec_vnode": "(n1:ncpus=1)"}
    job = HookJob(key, attributes, {"vcluster": "image=a"}, {}, first_host=True, stderr_file=str(tmp_path / "ER"))
    program = hook.run("-c", BUNDLE.replace("server", "mom")).stdout
    with agent_socket(agent, old_peers.url, "brno-h2", tmp_path) as path:
        config = json.dumps({"socket": str(path), "patience": 10})
        for kind in ("execjob_begin", "execjob_prologue", "execjob_end"):
            outcome = run_hook(program, HookEvent(kind, job, config=config))
            assert (outcome.failure, outcome.accepted) == (None, True), outcome
        await_(lambda: old_peers.json("cluster", "show", key)["state"] == "released")


def test_a_cluster_survives_an_upgrade_of_sbf(former: Version) -> None:
    with site() as (folder, switch):
        with standing(former, former, folder, switch) as made:
            assert made.cli("topology", "set", str(made.topology)).returncode == 0
            assert made.cli("pool", "set", "brno", "100-199").returncode == 0
            assert made.json("cluster", "create", "life", *CREATE)["state"] == "active"
            carried = switch.carrying()
        with standing(THIS, former, folder, switch) as made:
            difference = made.json("element", "diff", "brno-sw1", "--read")["switch"]
            assert {key: value for key, value in difference.items() if value} == {}
            await_(lambda: made.json("cluster", "show", "life")["state"] == "active")
            assert switch.carrying() == carried
            assert made.json("cluster", "delete", "life")["state"] == "released"
            assert not any(100 in vlans for vlans in switch.carrying().values())


def test_the_former_command_line_shows_and_sets_topologies(before_restructuring: Version, tmp_path: Path) -> None:
    """Version 0.2.0 refuses a topology with a value under a key that it does not know."""
    with site() as (folder, switch), standing(THIS, before_restructuring, folder, switch) as made:
        assert made.cli("topology", "set", str(made.topology)).returncode == 0
        for words in ((), ("--site", "brno")):
            shown = made.cli("topology", "show", *words)
            assert (shown.returncode, shown.stderr) == (0, "")
            (path := tmp_path / "shown.yaml").write_text(shown.stdout)
            done = made.cli("topology", "set", str(path), *words)
            assert done.returncode == 0, done


def test_an_upgrade_of_an_agent_restarts_no_guest(former: Version) -> None:
    script = DIGEST.format(segment=SEGMENT)
    assert former.run("-c", script).stdout == THIS.run("-c", script).stdout != ""


def test_databases_of_former_versions_are_checked_and_upgraded(former: Version, tmp_path: Path) -> None:
    (config := tmp_path / "sbf.toml").write_text(f'database = "sqlite:///{tmp_path}/sbf.db"')
    file = tmp_path / "sbf.db"
    created = former.run("-m", "sbf_service", "token", "create", "eva", "--role", "operator", "--config", str(config))
    assert created.returncode == 0, created
    before = file.read_bytes()
    sbf = ("-c", "from sbf_command import main; main()", "upgrade", "--config", str(config))
    checked = THIS.run(*sbf, "--check")
    assert (checked.returncode, "will pass" in checked.stdout, file.read_bytes()) == (0, True, before), checked
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == set()
    assert "was upgraded from" in THIS.run(*sbf).stdout
    with sqlite3.connect(file) as connection:
        assert connection.execute("SELECT name FROM tokens").fetchall() == [("eva",)]
