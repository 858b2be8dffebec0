"""Tests of the agent as a process on a batch server's host."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr
from support.programs.real_sbf import running_sbf

from virtcloud.client.sbf import SbfClient
from virtcloud.model.cluster import ClusterRequest, ClusterSpec, ClusterState
from virtcloud.model.element_views import Pool
from virtcloud.model.errors import BadInput, Forbidden, JobUnproven, NotFound
from virtcloud.model.topology import Topology
from virtcloud.model.values import ClusterKey
from virtcloud.model.vlans import VlanSet
from virtcloud.scheduler.status import SchedulerStatus, read_status

SITE = {
    "name": "brno",
    "switches": [{"name": "sw", "ports": ["p1"], "platform": "linux_bridge", "address": "127.0.0.1:1"}],
    "hosts": [{"name": "n1", "ports": ["eth0"]}],
}
TOPOLOGY = Topology.model_validate({"name": "small", "sites": [SITE], "links": [{"a": "sw:p1", "b": "n1:eth0"}]})
SPEC = ClusterSpec.model_validate({"owner": "alice", "hosts": ["n1"], "deadline_s": 600, "lease_s": 60})
SERVER = {"Server": {"pbssrv": {"server_state": "Active", "total_jobs": 1}}}
BOTH = 2
RUNS = {"job_state": "R", "run_version": 1, "Resource_List": {"vcluster": "image=a", "walltime": "02:00:00"}}
QSTAT = """#!/bin/sh
# Job 1 runs; no other is known.
[ -e {folder}/away ] && {{ echo "Connection refused" >&2; exit 255; }}
case "$1" in
-B) echo '{server}' ;;
*) echo '{jobs}'
   shift 3; for number; do [ $number = 1 ] || echo "qstat: Unknown Job Id $number.pbssrv" >&2; done; exit 153 ;;
esac
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with running_sbf() as sbf_address:
        yield sbf_address


@pytest.fixture
def sbf(address: str) -> Iterator[SbfClient]:
    with SbfClient(address) as client:
        client.put_topology(TOPOLOGY)
        client.put_pool("brno", Pool(vlans=VlanSet.parse("100-109")))
        token = client.create_token("pbssrv", "scheduler").token
        with SbfClient(address, token=lambda: SecretStr(token)) as hook:
            for key in ("1.pbssrv", "2.pbssrv", "2.other"):
                hook.put_cluster(key, ClusterRequest(spec=SPEC, attempt=1))
        client.put_cluster("99.pbssrv", ClusterRequest(spec=SPEC))
        yield client


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    text = QSTAT.format(folder=tmp_path, server=json.dumps(SERVER), jobs=json.dumps({"Jobs": {"1.pbssrv": RUNS}}))
    nodes = json.dumps({"nodes": {"n7": {"Mom": "n7"}}})
    scripts = {"qstat": text, "qselect": "#!/bin/sh\necho 1.pbssrv\n", "pbsnodes": f"#!/bin/sh\necho '{nodes}'\n"}
    for name, script in scripts.items():
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    return tmp_path


@pytest.fixture
def agent(address: str, sbf: SbfClient, commands: Path) -> Iterator["subprocess.Popen[str]"]:
    text = f"""
    sbf = "{address}"
    state = "{commands}/state"
    [scheduler]
    commands = "{commands}"
    status = "{commands}/status.json"
    interval = 0.1
    grace = 0.3
    """
    (commands / "agent.toml").write_text(text)
    argv = [sys.executable, "-m", "virtcloud.cli", "agent", "--config", str(commands / "agent.toml")]
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=os.environ)  # noqa: S603
    yield process
    process.kill()
    process.communicate()


def until(reached: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < ends
        time.sleep(0.05)


def status(folder: Path, wanted: Callable[[SchedulerStatus], bool]) -> SchedulerStatus:
    statuses: list[SchedulerStatus] = []

    def reached() -> bool:
        if (folder / "status.json").exists():
            statuses.append(read_status(folder / "status.json"))
        return bool(statuses) and wanted(statuses[-1])

    until(reached)
    return statuses[-1]


def test_reconciliation_runs_in_the_agent(sbf: SbfClient, commands: Path, agent: "subprocess.Popen[str]") -> None:
    """Clusters of another server's jobs, and clusters that a user requested directly, remain."""
    until(lambda: sbf.cluster("2.pbssrv").state is ClusterState.DRAINING)
    found_report = status(commands, lambda status: len(status.report.deeds) == BOTH and status.report.good).report
    assert [(alert.name, alert.about) for alert in found_report.alerts] == [("host-unknown", "n7")]
    assert sorted((action.what, action.cluster) for action in found_report.deeds) == [
        ("ended", "2.pbssrv"),
        ("extended", "1.pbssrv"),
    ]
    lives = {key: sbf.cluster(key) for key in ("1.pbssrv", "2.other", "99.pbssrv")}
    assert {cluster.state for cluster in lives.values()} == {ClusterState.CONFIGURING}
    assert lives["1.pbssrv"].lease_ends - lives["99.pbssrv"].lease_ends > timedelta(hours=2)
    (commands / "away").touch()
    assert "Connection refused" in status(commands, lambda status: not status.report.good).report.alerts[-1].text
    (commands / "away").unlink()
    status(commands, lambda status: status.report.good)
    agent.send_signal(signal.SIGTERM)
    log = agent.communicate(timeout=30)[1]
    assert agent.returncode == 0
    assert "cluster_ended cluster=2.pbssrv attempt=1 why='job 2.pbssrv is not known to pbssrv'" in log


def test_a_status_is_late_after_five_intervals(tmp_path: Path) -> None:
    text = '{"kind":"openpbs","sbf":"x","interval_s":30,"report":{"at":"2026-07-01T12:00:00Z","good":true}}'
    (tmp_path / "s.json").write_text(text)
    stored = read_status(tmp_path / "s.json")
    late = [stored.late(stored.report.at + timedelta(seconds=seconds)) for seconds in (150, 151)]
    assert late == [False, True]


def test_a_missing_or_foreign_status_file_raises(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no 'virtcloud agent' with \[scheduler\] has run since the boot"):
        read_status(tmp_path / "s.json")
    for content in (b"{}", b"\xff"):
        (tmp_path / "s.json").write_bytes(content)
        with pytest.raises(BadInput, match="not a valid status file"):
            read_status(tmp_path / "s.json")


TORQUE_QSTAT = """#!/bin/sh
# Job 7 of alice runs on n1.
case "$1" in
-B) printf 'Server: torque\\n    server_state = Active\\n    total_jobs = 1\\n' ;;
*) echo '<Data><Job><Job_Id>7.torque</Job_Id><Job_Owner>alice@n1</Job_Owner><job_state>R</job_state>\
<exec_host>n1/0</exec_host><Resource_List><other>vcluster=image=a</other></Resource_List></Job></Data>' ;;
esac
"""


def test_the_agent_at_torques_server_confirms_a_starting_job(address: str, sbf: SbfClient, tmp_path: Path) -> None:
    for name, script in {"qstat": TORQUE_QSTAT, "pbsnodes": "#!/bin/sh\necho '<Data></Data>'\n"}.items():
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    keys = f'kind = "torque"\ncommands = "{tmp_path}"\nstatus = "{tmp_path}/status.json"'
    (tmp_path / "agent.toml").write_text(f'sbf = "{address}"\nstate = "{tmp_path}/state"\n[scheduler]\n{keys}\n')
    token = sbf.create_token("n1", "job-starter").token
    argv = [sys.executable, "-m", "virtcloud.cli", "agent", "--config", str(tmp_path / "agent.toml")]
    with (
        subprocess.Popen(argv, stderr=subprocess.DEVNULL, env=os.environ) as agent,  # noqa: S603
        SbfClient(address, token=lambda: SecretStr(token)) as host,
    ):
        try:
            await_cluster(host, "7.torque", SPEC)
            with pytest.raises(Forbidden, match="the job requested no network to join"):
                await_cluster(host, "7.torque", SPEC.model_copy(update={"joins": ClusterKey("99.pbssrv")}), attempt=2)
        finally:
            agent.terminate()
    assert sbf.cluster("7.torque").created_by == "job-starter@n1"


def await_cluster(host: SbfClient, key: str, spec: ClusterSpec, attempt: int = 1) -> None:

    def made() -> bool:
        try:
            host.put_cluster(key, ClusterRequest(spec=spec, attempt=attempt))
        except JobUnproven:
            return False
        return True

    until(made)
