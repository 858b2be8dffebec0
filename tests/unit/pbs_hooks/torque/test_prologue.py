"""Tests of the scripts that Torque runs before a job, and of their messages if the job does not start.

A sister is a host of a job other than the job's first host.
"""

import getpass

import pytest
from support.batch_fakes.torque_host import (
    FACTS,
    REQUEST,
    RESOURCES,
    UNKNOWN,
    UP,
    SbfCall,
    ScriptResult,
    TorqueHost,
    listed,
    problem,
    script_job_states,
)

from pbs_hooks.torque.scripts import prologue_epilogue

USER = getpass.getuser()
SPEC = {
    "owner": USER,
    "hosts": ["brno-h1", "brno-h2"],
    "guests": [
        {"name": f"g{n}", "host": f"brno-h{n}", "image": "busybox", "memory_mb": 256, "cpus": 1, "addresses": [address]}
        for n, address in ((1, "10.0.0.1/24"), (2, "10.0.0.2/24"))
    ],
    "lease_s": 3600 + 600 + 300,
    "deadline_s": 225,
}


def test_a_job_without_a_request_runs_without_calls(bench: TorqueHost) -> None:
    assert bench.run("prologue", "nodes=2,walltime=01:00:00") == ScriptResult(0, "")
    assert bench.run("prologue.parallel", "nodes=2") == ScriptResult(0, "")
    assert (bench.agent_requests, bench.sbf_calls) == ([], [])


def test_a_job_whose_network_the_scheduler_created_is_ignored(bench: TorqueHost) -> None:
    assert bench.run("prologue", MAGRATHEA_VLANID="lab1") == ScriptResult(0, "")
    assert (bench.agent_requests, bench.sbf_calls) == ([], [])


def test_a_sister_announces_nothing_to_its_agent(bench: TorqueHost) -> None:
    """If a job's script never starts, Torque does not run epilogue.parallel, which would remove the announcement."""
    assert bench.run("prologue.parallel") == ScriptResult(0, "")
    assert (bench.agent_requests, bench.sbf_calls) == ([{"do": "list"}], [])


def test_a_sister_waits_for_the_removal_of_former_runs(bench: TorqueHost) -> None:
    answers = [listed(("7.torque", True)), listed(("6.torque", True), ("7.torque", False))]
    bench.answer_as_agent = lambda _: answers.pop(0)
    assert bench.run("prologue.parallel") == ScriptResult(0, "")
    assert answers == []


def test_a_sister_reports_an_incomplete_removal(bench: TorqueHost) -> None:
    bench.settings(patience=1)
    bench.answer_as_agent = lambda _: listed(("7.torque", True))
    text = "vcluster: cluster 7.torque of the job's former run is still being removed; the job will be tried again\n"
    assert bench.run("prologue.parallel") == ScriptResult(2, text)


def test_a_sister_requeues_the_job_if_its_agent_is_absent(bench: TorqueHost) -> None:
    bench.settings(socket="/nonexistent/agent.sock", patience=1)
    ran = bench.run("prologue.parallel")
    assert ran.code == 2
    assert "this host's agent does not answer" in ran.stderr


def test_the_first_host_requests_the_cluster_and_waits(bench: TorqueHost) -> None:
    assert bench.run("prologue") == ScriptResult(0, "")
    assert bench.sbf_calls == [
        SbfCall("GET", "/v1/clusters/7.torque", None),
        SbfCall("PUT", "/v1/clusters/7.torque", {"spec": SPEC, "attempt": 1}),
    ]
    assert [one["do"] for one in bench.agent_requests] == ["up", "state"]
    assert bench.agent_requests[0]["head"] is True


@pytest.mark.parametrize(("setting", "sent"), [(True, {"authorized_keys": ["ssh-ed25519 AAAA"]}), (False, {})])
def test_the_request_contains_the_keys_of_the_users_home(
    bench: TorqueHost, monkeypatch: pytest.MonkeyPatch, setting: bool, sent: dict[str, object]
) -> None:
    monkeypatch.setattr(prologue_epilogue, "read_user_keys", lambda user: ["ssh-ed25519 AAAA"] if user == USER else [])
    bench.settings(user_keys=setting)
    bench.run("prologue")
    assert bench.sbf_calls[-1].document["spec"] == SPEC | sent


@pytest.mark.parametrize("resources", [RESOURCES, "nodes=2,net=private,walltime=1:0:0"])
@pytest.mark.parametrize(("patience", "deadline"), [(260, 245), (10, 7.5)])
def test_the_clusters_deadline_is_earlier_than_the_scripts_time_limit(
    bench: TorqueHost, resources: str, patience: int, deadline: int
) -> None:
    bench.settings(patience=patience)
    bench.run("prologue", resources)
    assert bench.sbf_calls[-1].document["spec"]["deadline_s"] == deadline


def test_a_repeated_request_has_the_same_deadline(bench: TorqueHost) -> None:
    answers = [problem(503, "database-unavailable", "the database does not answer"), (201, {})]
    bench.answer_as_sbf = lambda call: UNKNOWN if call.method == "GET" else answers.pop(0)
    bench.run("prologue")
    assert [call.document["spec"]["deadline_s"] for call in bench.sbf_calls if call.method == "PUT"] == [225, 225]


def test_a_rerun_has_the_next_attempt_number(bench: TorqueHost) -> None:
    bench.answer_as_sbf = lambda call: (200, {"attempt": 3, "state": "released"}) if call.method == "GET" else (201, {})
    bench.run("prologue")
    assert bench.sbf_calls[-1].document["attempt"] == 4


def test_a_former_cluster_of_a_dead_host_is_removed_first(bench: TorqueHost) -> None:
    answers = [problem(409, "attempt-waits", "attempt 1 is still there"), (201, {})]
    bench.answer_as_sbf = lambda call: UNKNOWN if call.method == "GET" else answers.pop(0)
    assert bench.run("prologue") == ScriptResult(0, "")
    assert [one.method for one in bench.sbf_calls] == ["GET", "PUT", "PUT"]


def test_only_the_user_can_read_the_environment_file(bench: TorqueHost) -> None:
    bench.run("prologue")
    file = bench.folder / "environments/7.Torque"
    assert file.read_text().splitlines() == [
        "unset VCLUSTER_HOSTFILE VCLUSTER_HOSTS VCLUSTER_KNOWN_HOSTS VCLUSTER_NAME VCLUSTER_SSH_CONFIG",
        "export MAGRATHEA_VLANID=112",
        "export VCLUSTER_GUESTS='g1 g2'",
        "export VCLUSTER_ID=7.torque",
        "export VCLUSTER_VLAN=112",
    ]
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o400, 0o711)


def test_an_existing_folder_keeps_its_mode(bench: TorqueHost) -> None:
    folder = bench.folder / "environments"
    folder.mkdir()
    folder.chmod(0o1777)
    assert bench.run("prologue") == ScriptResult(0, "")
    assert folder.stat().st_mode & 0o7777 == 0o1777


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        (
            "nodes=2,walltime=1:0:0,other=vcluster=image=a:guests=0",
            "vcluster: guests: expected a number from 1 to 64, got '0' (character 9)",
        ),
        ("nodes=2,other=vcluster=image=a", "vcluster: a walltime is required, at most 168:00:00"),
        (
            "nodes=2,walltime=1:0:0,vcluster=image=a:publish=yes",
            "vcluster: 'publish' is not supported here (character 9)",
        ),
        ("nodes=2,net=private", "vcluster: a walltime is required, at most 168:00:00"),
    ],
)
def test_an_invalid_request_aborts_the_job(bench: TorqueHost, resources: str, message: str) -> None:
    assert bench.run("prologue", resources) == ScriptResult(1, message + "\n")
    assert (bench.agent_requests, bench.sbf_calls) == ([], [])


@pytest.mark.parametrize("resources", [RESOURCES, "nodes=2,net=private,walltime=1:0:0"])
def test_an_array_is_refused(bench: TorqueHost, resources: str) -> None:
    ran = bench.run("prologue", resources, job="7[1].torque")
    assert (ran, bench.agent_requests) == (ScriptResult(1, "vcluster: job arrays are not supported\n"), [])


@pytest.mark.parametrize(
    ("slug", "detail", "code", "message"),
    [
        ("no-vlan-free", "no VLAN is free at brno", 2, "no VLAN is free at brno; the job will be tried again"),
        (
            "quota-exceeded",
            "alice already has 2 clusters (limit 2)",
            2,
            "alice already has 2 clusters (limit 2); the job will be tried again",
        ),
        ("conflict", "cluster 6.x uses port p1", 2, "cluster 6.x uses port p1; the job will be tried again"),
        ("no-gateway", "brno-gw does not answer", 2, "brno-gw does not answer; the job will be tried again"),
        ("other-spec", "cluster 7.torque exists", 2, "cluster 7.torque exists; the job will be tried again"),
        (
            "no-such-host",
            "host brno-h2 is not known",
            2,
            "host brno-h2 has no switch port in SBF; the job will be tried again",
        ),
        ("name-taken", "'x' is already running as job 12.server", 1, "'x' is already running as job 12.server"),
        (
            "vlan-not-in-pool",
            "VLAN 1203 is not in the pool of site brno (100-199)",
            1,
            "VLAN 1203 is not in the pool of site brno (100-199)",
        ),
    ],
)
def test_a_refused_request_is_reported_and_withdrawn(
    bench: TorqueHost, slug: str, detail: str, code: int, message: str
) -> None:
    bench.answer_as_sbf = lambda call: UNKNOWN if call.method == "GET" else problem(409, slug, detail)
    assert bench.run("prologue") == ScriptResult(code, f"vcluster: {message}\n")
    assert [one["do"] for one in bench.agent_requests if one["do"] != "list"] == ["up", "remove"]


def test_an_attempt_number_in_use_requeues_the_job(bench: TorqueHost) -> None:
    """A late request of a run whose host died can reach SBF after the next run has read the last attempt number."""
    bench.answer_as_sbf = lambda call: UNKNOWN if call.method == "GET" else problem(410, "gone", "attempt 1 has ended")
    assert bench.run("prologue") == ScriptResult(2, "vcluster: attempt 1 has ended; the job will be tried again\n")


def test_requests_to_sbf_are_repeated_until_time_runs_out(bench: TorqueHost) -> None:
    bench.settings(sbf="http://127.0.0.1:1", patience=1)
    ran = bench.run("prologue")
    assert ran.code == 2
    assert ran.stderr == "vcluster: SBF at http://127.0.0.1:1: Connection refused; the job will be tried again\n"


def test_a_short_outage_fails_no_job(bench: TorqueHost) -> None:
    answers = [problem(503, "database-unavailable", "the database does not answer"), (201, {})]
    bench.answer_as_sbf = lambda call: UNKNOWN if call.method == "GET" else answers.pop(0)
    assert bench.run("prologue") == ScriptResult(0, "")


def test_the_prologue_waits_while_something_is_missing(bench: TorqueHost) -> None:
    script_job_states(bench, {"state": "waiting", "missing": ["guest g2 does not answer at 10.0.0.2"]}, UP)
    assert bench.run("prologue") == ScriptResult(0, "")


def test_a_timeout_names_what_is_missing_and_withdraws(bench: TorqueHost) -> None:
    bench.settings(patience=1)
    default = bench.answer_as_agent
    waiting = {"ok": True, "state": "waiting", "missing": ["guest g2 does not answer at 10.0.0.2"]}
    bench.answer_as_agent = lambda request: waiting if request["do"] == "state" else default(request)
    assert bench.run("prologue") == ScriptResult(
        2, "vcluster: guest g2 does not answer at 10.0.0.2; the job will be tried again\n"
    )
    assert bench.agent_requests[-1] == {"do": "remove", "cluster": "7.torque", "attempt": 0, "user": USER, "wait": 0}


@pytest.mark.parametrize(
    ("state", "reason", "code", "message"),
    [
        (
            "failed",
            "switch brno-sw1 said no",
            2,
            "the cluster could not be set up: switch brno-sw1 said no; the job will ",
        ),
        ("cancelled", "qdel", 1, "the job was deleted while its cluster was being set up (qdel)"),
        ("ended", None, 1, "the job was deleted while its cluster was being set up"),
    ],
)
def test_a_failed_cluster_ends_the_wait(bench: TorqueHost, state: str, reason: str, code: int, message: str) -> None:
    script_job_states(bench, {"state": state, "missing": [], "reason": reason})
    ran = bench.run("prologue")
    assert (ran.code, message in ran.stderr) == (code, True)
    assert bench.agent_requests[-1]["do"] == "remove"


def test_the_resource_net_connects_hosts_without_guests(bench: TorqueHost) -> None:
    assert bench.run("prologue", "nodes=2:ppn=2,net=private,walltime=01:00:00") == ScriptResult(0, "")
    assert bench.sbf_calls[-1].document["spec"] == {**SPEC, "guests": []}


def test_the_resource_net_joins_a_network(bench: TorqueHost) -> None:
    root = {"key": "3.torque", "spec": {"guests": []}}
    answers = {"/v1/clusters?network=lab": (200, [root]), "/v1/clusters/7.torque": UNKNOWN}
    bench.answer_as_sbf = lambda call: answers[call.path] if call.method == "GET" else (201, {})
    assert bench.run("prologue", "nodes=2:ppn=2,net=lab,walltime=01:00:00") == ScriptResult(0, "")
    assert bench.sbf_calls[-1].document["spec"] == {**SPEC, "guests": [], "joins": "3.torque"}


@pytest.mark.parametrize(
    ("refusal", "result"),
    [
        (problem(429, "too-many-requests", "repeat it later"), ScriptResult(0, "")),
        (problem(500, "internal", "an error"), ScriptResult(0, "")),
        (
            problem(401, "unauthenticated", "the token is unknown"),
            ScriptResult(2, "vcluster: the token is unknown; the job will be tried again\n"),
        ),
    ],
)
def test_a_temporary_refusal_of_the_network_aborts_no_job(
    bench: TorqueHost, refusal: tuple[int, object], result: ScriptResult
) -> None:
    answers = [refusal, (200, [{"key": "3.torque", "spec": {"guests": []}}])]
    get = {"/v1/clusters/7.torque": lambda: UNKNOWN, "/v1/clusters?network=lab": lambda: answers.pop(0)}
    bench.answer_as_sbf = lambda call: get[call.path]() if call.method == "GET" else (201, {})
    assert bench.run("prologue", "nodes=2:ppn=2,net=lab,walltime=01:00:00") == result


def test_a_network_without_free_addresses_aborts_no_job(bench: TorqueHost) -> None:
    root = {"key": "3.torque", "spec": {"guests": [{"name": "g1", "addresses": ["10.0.0.1/30"]}]}}
    bench.answer_as_sbf = lambda call: (200, [root]) if "network=" in call.path else UNKNOWN
    ran = bench.run("prologue", "nodes=2,walltime=1:0:0,other=vcluster=image=a:net=lab")
    text = "vcluster: subnet: expected 2 free addresses for guests, got 10.0.0.0/30 with 1"
    assert ran == ScriptResult(2, text + "; the job will be tried again\n")


def test_a_missing_network_cannot_be_joined(bench: TorqueHost) -> None:
    bench.answer_as_sbf = lambda call: (200, []) if "network=" in call.path else UNKNOWN
    ran = bench.run("prologue", "nodes=2,walltime=1:0:0,other=vcluster=image=a:net=lab")
    assert ran == ScriptResult(1, "vcluster: net: expected the name of a running network, got 'lab'\n")


def test_settings_map_host_names(bench: TorqueHost) -> None:
    bench.settings(hosts={"brno-h2.example": "b2"})
    bench.run("prologue")
    assert bench.sbf_calls[-1].document["spec"]["hosts"] == ["b2", "brno-h1"]


def test_a_job_on_one_host_needs_no_nodefile(bench: TorqueHost) -> None:
    bench.run("prologue", PBS_NODEFILE="")
    assert bench.sbf_calls[-1].document["spec"]["hosts"] == ["brno-h1"]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("patience", 600, "setting patience: expected seconds from 1 to 260, got 600"),
        ("socket", None, "setting socket: expected a path that starts with /, got None"),
        ("sbf", None, "the scripts' setting sbf: expected SBF's address, such as https://sbf.example, got none"),
        ("sfb", "http://sbf", "settings: expected one of sbf, token_file"),
    ],
)
def test_an_invalid_setting_requeues_the_job(bench: TorqueHost, key: str, value: object, message: str) -> None:
    bench.settings(**{key: value})
    ran = bench.run("prologue")
    assert ran.code == 2
    assert message in ran.stderr
    assert ran.stderr.endswith("; the job will be tried again\n")


def test_a_user_unknown_on_the_host_withdraws_the_cluster(bench: TorqueHost) -> None:
    bench.user = "nobody-of-this-name"
    ran = bench.run("prologue")
    assert (ran.code, bench.agent_requests[-1]["do"]) == (2, "remove")


def test_the_environment_file_contains_all_variables(bench: TorqueHost) -> None:
    bench.run("prologue", RESOURCES)
    text = (bench.folder / "environments/7.Torque").read_text()
    assert all(f"export {name}=" in text for name in FACTS)


NODES = "+".join(f"brno-h{number}.example.org:ppn=16" for number in range(1, 50))
LONG = f"neednodes={NODES},nodect=49,walltime=01:00:00"


@pytest.fixture
def long_job(bench: TorqueHost) -> TorqueHost:
    """A host whose job has the request in its script. The job's resource list is too long and is truncated."""
    (bench.folder / "7.SC").write_text(f"#!/bin/sh\n#PBS -l other=vcluster={REQUEST}\nhostname\n")
    return bench


def test_the_first_host_finds_the_request_in_the_jobs_script(long_job: TorqueHost) -> None:
    assert long_job.run("prologue", LONG) == ScriptResult(0, "")
    assert [one.method for one in long_job.sbf_calls] == ["GET", "PUT"]


def test_the_epilogue_finds_the_request_in_the_jobs_script(long_job: TorqueHost) -> None:
    assert long_job.run("epilogue", LONG) == ScriptResult(0, "")
    assert [one["do"] for one in long_job.agent_requests] == ["remove"]


@pytest.mark.parametrize("script", ["#!/bin/sh\n#PBS -l other=fast\n", None])
def test_a_job_with_a_truncated_list_and_no_request_runs(bench: TorqueHost, script: str | None) -> None:
    if script:
        (bench.folder / "7.SC").write_text(script)
    heard: list[SbfCall] = []
    assert (bench.run("prologue", LONG), bench.sbf_calls) == (ScriptResult(0, ""), heard)


def test_a_short_resource_list_overrides_the_script(long_job: TorqueHost) -> None:
    """Users may alter a waiting job's resources. Therefore the resource list has precedence over the job's script.

    The prologue searches the script for a request only if the resource list may be truncated.
    """
    assert long_job.run("prologue", "nodes=1:ppn=1,walltime=01:00:00") == ScriptResult(0, "")
    assert long_job.sbf_calls == []
