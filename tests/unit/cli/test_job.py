"""Tests of ``virtcloud job``, which shows the cluster of a batch job to the job's user."""

import json

import pytest
from support.cli_calls import RunCommand
from support.fake_machine.clusters import FakeSbf, view

from virtcloud.cli.job import parse_job_id
from virtcloud.model.cluster import ClusterSpec, ClusterState
from virtcloud.model.errors import BadInput

SPEC = ClusterSpec.model_validate(
    {
        "owner": "alice",
        "name": "sim",
        "guests": [
            {"name": "g1", "host": "brno-h1", "image": "debian12", "addresses": ["10.0.0.1/24"]},
            {"name": "g2", "host": "praha-h1", "image": "debian12", "addresses": ["10.0.0.2/24", "fd00::2/64"]},
        ],
    }
)
JOINER = ClusterSpec.model_validate({"owner": "bob", "guests": [{"name": "b1", "host": "brno-h1", "image": "a"}]})


@pytest.fixture
def sbf_with_job(sbf: FakeSbf, monkeypatch: pytest.MonkeyPatch) -> FakeSbf:
    for name in ("VCLUSTER_ID", "PBS_JOBID"):
        monkeypatch.delenv(name, raising=False)
    sbf.clusters["12.pbssrv"] = view("12.pbssrv", SPEC, ClusterState.ACTIVE)
    return sbf


def test_a_job_is_shown_with_network_guests_and_lease(run: RunCommand, sbf_with_job: FakeSbf) -> None:
    lines = run("job", "12.pbssrv").stdout.splitlines()
    assert lines[:2] == [
        "the cluster of job 12.pbssrv (alice, attempt 0) is active",
        "network: sim: VLAN 100 at brno, praha",
    ]
    assert lines[2].startswith("lease ends 2026-07-01 ")
    assert [line.split() for line in lines[4:]] == [
        ["guest", "host", "addresses", "image"],
        ["g1", "brno-h1", "10.0.0.1/24", "debian12"],
        ["g2", "praha-h1", "10.0.0.2/24", "fd00::2/64", "debian12"],
    ]


def test_unconfirmed_elements_are_listed(run: RunCommand, sbf_with_job: FakeSbf) -> None:
    sbf_with_job.clusters["12.pbssrv"] = view("12.pbssrv", SPEC, ClusterState.CONFIGURING)
    assert [line for line in run("job", "12.pbssrv").stdout.splitlines() if line.startswith("missing")] == [
        "missing: switch brno-sw at brno: waiting for VLAN 100 on its ports",
        "missing: host brno-h1 at brno: waiting for VLAN 100 and g1",
    ]


def test_other_clusters_of_the_network_are_listed(run: RunCommand, sbf_with_job: FakeSbf) -> None:
    sbf_with_job.clusters["13.pbssrv"] = view("13.pbssrv", JOINER, ClusterState.CONFIGURING)
    sbf_with_job.networks["12.pbssrv"] = ["12.pbssrv", "13.pbssrv"]
    lines = [line.split() for line in run("job", "12.pbssrv").stdout.splitlines()]
    assert lines[-2:] == [["also", "in", "this", "network", "owner", "state", "guests"],
                          ["13.pbssrv", "bob", "configuring", "b1"]]  # fmt: skip


def test_a_job_is_printed_as_json(run: RunCommand, sbf_with_job: FakeSbf) -> None:
    summary = json.loads(run("job", "12.PBSSRV", "--json").stdout)
    assert (summary["job"], summary["missing"], summary["cluster"]["state"]) == ("12.pbssrv", [], "active")


def test_a_job_is_found_by_its_number(run: RunCommand, sbf_with_job: FakeSbf) -> None:
    assert "job 12.pbssrv" in run("job", "12").stdout


def test_a_job_number_of_two_servers_is_refused(run: RunCommand, sbf_with_job: FakeSbf) -> None:
    sbf_with_job.clusters["12.other"] = view("12.other", SPEC, ClusterState.ACTIVE)
    result = run("job", "12")
    assert (result.exit_code, result.stderr) == (
        2,
        "virtcloud: job 12 exists on several servers: 12.other, 12.pbssrv; use the full ID\n",
    )


def test_a_job_without_a_cluster_is_an_error_with_reasons(run: RunCommand, sbf_with_job: FakeSbf) -> None:
    result = run("job", "13.pbssrv")
    reasons = "the job did not request a cluster (-l vcluster=…), has not started, or belongs to another user"
    assert (result.exit_code, result.stderr) == (
        2,
        f"virtcloud: found no cluster of job 13.pbssrv: {reasons}; see 'qstat -f 13.pbssrv'\n",
    )


def test_an_ended_job_needs_its_full_id(run: RunCommand, sbf_with_job: FakeSbf) -> None:
    sbf_with_job.clusters["12.pbssrv"] = view("12.pbssrv", SPEC, ClusterState.RELEASED)
    result = run("job", "12")
    assert (result.exit_code, "has ended (use its full ID to show its cluster), or belongs" in result.stderr) == (
        2,
        True,
    )
    assert run("job", "12.pbssrv").stdout.splitlines()[:2] == [
        "the cluster of job 12.pbssrv (alice, attempt 0) is released",
        "",
    ]


@pytest.mark.parametrize("given", ["mine", "12.pbssrv;x", "12.", "-1", "Foo bar"])
def test_a_malformed_job_id_is_refused(given: str) -> None:
    with pytest.raises(BadInput, match=r"expected the ID of a job, such as 12\.pbssrv, got '"):
        parse_job_id(given, {})


def test_wait_returns_when_the_jobs_cluster_is_active(run: RunCommand, sbf_with_job: FakeSbf) -> None:
    sbf_with_job.clusters["12.pbssrv"] = view("12.pbssrv", SPEC, ClusterState.CONFIGURING)
    result = run("job", "12.pbssrv", "--wait")
    assert (result.exit_code, "is active" in result.stdout, "waiting for VLAN 100" in result.stderr) == (0, True, True)


def test_waiting_for_a_failing_cluster_exits_with_1(run: RunCommand, sbf_with_job: FakeSbf) -> None:
    sbf_with_job.clusters["12.pbssrv"] = view("12.pbssrv", SPEC, ClusterState.CONFIGURING)
    sbf_with_job.next[ClusterState.CONFIGURING] = ClusterState.FAILING
    result = run("job", "12.pbssrv", "--wait")
    assert (result.exit_code, "cluster 12.pbssrv is failed: brno-sw: it does not answer" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    ("given", "environment", "job"),
    [
        ("7.A", {"VCLUSTER_ID": "8.a"}, "7.a"),
        (None, {"VCLUSTER_ID": "8.a", "PBS_JOBID": "9.A"}, "9.a"),
        (None, {"VCLUSTER_ID": "8.a", "PBS_JOBID": ""}, "8.a"),
        (None, {"VCLUSTER_ID": "", "PBS_JOBID": "9.a"}, "9.a"),
    ],
)
def test_within_a_job_the_environment_contains_the_job_id(
    given: str | None, environment: dict[str, str], job: str
) -> None:
    assert parse_job_id(given, environment) == job


def test_outside_of_a_job_an_id_is_required(run: RunCommand, sbf_with_job: FakeSbf) -> None:
    result = run("job")
    message = "as argument, or in the environment as PBS_JOBID or VCLUSTER_ID, got none; 'qstat' lists your jobs"
    assert (result.exit_code, result.stderr) == (2, f"virtcloud: expected the ID of a job {message}\n")


def test_jobs_of_arrays_have_no_clusters() -> None:
    with pytest.raises(BadInput, match=r"job 12\[3\]\.pbssrv is part of a job array, and such jobs have no clusters"):
        parse_job_id(None, {"PBS_JOBID": "12[3].pbssrv"})
