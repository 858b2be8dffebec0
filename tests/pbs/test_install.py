import json
import time
from collections.abc import Iterator

import pytest
from batch_scenarios.openpbs_lab import HOSTS, SETTINGS, RealBatch

from virtcloud.lab import addressing
from virtcloud.lab.errors import LabFailed, LabImpossible
from virtcloud.lab.pbs import LabPbs, openpbs, scripts
from virtcloud.testing.fakepbs.batch_system import BatchJobState, BatchSubmission

SBF = f"http://{addressing.STATION_ADDRESS}:{addressing.SBF_PORT}"
LIMIT_S = 60.0
pytestmark = [pytest.mark.pbs, pytest.mark.timeout(600)]
OTHERS = ("create hook foreign", "set hook foreign event = queuejob", "create resource foreign type=long,flag=nh")


@pytest.fixture
def others(batch: LabPbs) -> Iterator[str]:
    for line in OTHERS:
        batch.root("qmgr", "-c", line)
    yield _print_others(batch)
    batch.root("qmgr", "-c", "delete hook foreign")
    batch.root("qmgr", "-c", "delete resource foreign")


def _print_others(batch: LabPbs) -> str:
    return "".join(
        batch.root("qmgr", "-c", f"print {name}") for name in ("hook foreign", "hook pbs_cgroups", "resource foreign")
    )


def pbs(batch: LabPbs, *words: str) -> tuple[int, str, str]:
    done = batch.try_virtcloud("pbs", *words)
    return done.returncode, done.stdout, done.stderr


def test_installing_again_changes_nothing(batch: LabPbs) -> None:
    assert pbs(batch, "install") == (0, "nothing to do: the hooks are installed and up to date\n", "")


def test_install_shows_and_repairs_differences_of_its_own_hooks_only(batch: LabPbs, others: str) -> None:
    batch.root("qmgr", "-c", "set hook virtcloud_mom alarm = 30")
    _, shown, _ = pbs(batch, "install", "--sbf", "http://other.example:8800", "--dry-run")
    assert shown.splitlines() == [
        "dry run; these changes would be made:",
        "hook virtcloud_server: settings",
        f'  -sbf = "{SBF}"',
        '  +sbf = "http://other.example:8800"',
        "hook virtcloud_mom: alarm = 600 (was 30)",
    ]
    assert pbs(batch, "install")[1] == "hook virtcloud_mom: alarm = 600 (was 30)\n"
    assert pbs(batch, "install")[1] == "nothing to do: the hooks are installed and up to date\n"
    assert _print_others(batch) == others


def test_a_second_openpbs_in_a_lab_is_refused(batch: LabPbs) -> None:
    with pytest.raises(LabImpossible, match="OpenPBS already runs in this lab"):
        batch.start(HOSTS)


def test_a_mom_on_an_unknown_host_is_refused(batch: LabPbs) -> None:
    with pytest.raises(LabImpossible, match="the lab has no host brno-sw1; its hosts are: brno-h1, "):
        batch.start([HOSTS[0], "brno-sw1"])


def test_a_pbs_without_hosts_is_refused(batch: LabPbs) -> None:
    with pytest.raises(LabImpossible, match="OpenPBS needs at least one host, got none"):
        batch.start([])


def test_waiting_for_an_offline_host_fails_while_others_are_free(
    batch: LabPbs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openpbs, "START_S", 1.0)
    batch.root("pbsnodes", "-o", HOSTS[0])
    try:
        with pytest.raises(LabFailed, match=f"PBS: expected {HOSTS[0]} to be free after 1 s, got: {HOSTS[0]}"):
            batch.await_free(HOSTS[:1])
    finally:
        batch.root("pbsnodes", "-r", HOSTS[0])
    batch.await_free(HOSTS)


def test_status_reports_a_sound_installation(batch: LabPbs) -> None:
    code, output, _ = pbs(batch, "status", "--json")
    found = {finding["subject"]: finding for finding in json.loads(output)}
    assert [finding for finding in found.values() if not finding["good"]] == []
    assert found["hosts"]["seen"] == "3 of 3 are in SBF and have a running agent"
    assert found["copies on hosts"]["seen"] == "the server has sent virtcloud_mom to every host"
    assert found["reconciliation"]["seen"].startswith("last round ")
    assert code == 0


def test_status_reports_faults(batch: LabPbs) -> None:
    batch.root("qmgr", "-c", "set hook virtcloud_server enabled = false")
    try:
        code, output, _ = pbs(batch, "status")
        assert code == 1
        assert "enabled = true (was false): run virtcloud pbs install" in output
    finally:
        pbs(batch, "install")


def test_only_managers_can_install(batch: LabPbs) -> None:
    error = batch.user("alice", [str(batch.installation.program("qmgr")), "-c", "list hook"])
    assert "unauthorized" in error.stdout + error.stderr


def test_an_unreachable_server_is_reported(batch: LabPbs) -> None:
    code, _, error = pbs_with(batch, {"PBS_SERVER": "brno-h1"}, "install")
    assert code != 0
    assert "PBS server: expected an answer to qmgr, got: Connection refused" in error


def pbs_with(batch: LabPbs, environment: dict[str, str], *words: str) -> tuple[int, str, str]:
    done = batch.try_virtcloud("pbs", *words, environment=environment)
    return done.returncode, done.stdout, done.stderr


def test_a_resource_of_another_type_is_refused(batch: LabPbs) -> None:
    code, removed, error = pbs(batch, "uninstall")
    assert (code, error) == (0, "")
    assert removed.splitlines() == [
        "delete hook virtcloud_server",
        "delete hook virtcloud_mom",
        "delete resource vcluster",
        "delete resource vcluster_spec",
    ]
    batch.root("qmgr", "-c", "create resource vcluster type=long,flag=h")
    try:
        code, _, error = pbs(batch, "install", "--sbf", SBF)
        assert code == 1
        assert "resource vcluster: expected type=string, flag=m, got type=long, flag=h; left unchanged" in error
    finally:
        batch.root("qmgr", "-c", "delete resource vcluster")
        batch.install_hooks(SETTINGS)


def test_removal_is_refused_while_a_job_runs_with_a_cluster(batch: LabPbs) -> None:
    """The hooks stay installed, because they must remove the cluster when the job ends."""
    jobs = RealBatch(batch, HOSTS)
    job = jobs.submit(BatchSubmission("sleep 600\n", resources={"vcluster": "image=busybox"}))
    try:
        _reach(jobs, job, BatchJobState.RUNNING)
        code, _, error = pbs(batch, "uninstall")
    finally:
        jobs.delete(job)
        _reach(jobs, job, BatchJobState.FINISHED)
    assert code == 1
    assert f"jobs run with a cluster ({job})" in error


def _reach(jobs: RealBatch, job: str, state: BatchJobState) -> None:
    deadline = time.monotonic() + LIMIT_S
    while jobs.status(job).state is not state:
        assert time.monotonic() < deadline, jobs.log(job)
        time.sleep(0.2)


def test_every_host_gets_the_mom_hook(batch: LabPbs) -> None:
    for host in HOSTS:
        files = batch.lab.run(host, ["ls", f"{scripts.HOME}/mom_priv/hooks"]).stdout.split()
        assert [file for file in files if file.startswith("virtcloud")] == [
            f"virtcloud_mom.{kind}" for kind in ("CF", "HK", "PY")
        ]
