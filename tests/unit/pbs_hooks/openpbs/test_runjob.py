"""Tests of the server hook at the start and at the end of a job.

PBS does not start a job that has a hold. A job's owner can remove a user hold (``u``), but not a system hold (``s``).
"""

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
from support.batch_fakes.scripted_sbf import ScriptedSbf, problem
from support.batch_fakes.server_hook import ServerHook, logged

from pbs_hooks.openpbs.hooks import runjob
from pbs_hooks.openpbs.hooks.openpbs_settings import MOM_SETTINGS
from pbs_hooks.openpbs.hooks.pbs_job import format_reason
from virtcloud.jobs.job_cluster_spec import JobRun
from virtcloud.jobs.request import JobRequest
from virtcloud.model.call_context import TraceParent

PUT = "PUT /v1/clusters/12.pbssrv"
MADE = (201, {"state": "configuring"})
DELETE = "DELETE /v1/clusters/12.pbssrv?attempt=3&owner=alice"
AGAIN = "; the job will be tried again"
NETWORK = "GET /v1/clusters?network=mine"


def member(key: str, *addresses: str) -> dict[str, object]:
    guests = [{"name": f"g{n}", "addresses": [one]} for n, one in enumerate(addresses, 1)]
    return {"key": key, "spec": {"owner": "bob", "guests": guests}}


def test_the_cluster_is_requested_for_the_next_run_number(server_hook: ServerHook, sbf: ScriptedSbf) -> None:
    """PBS passes the number of the last run to the server hook, and the number of the current run to the MoM hook.

    A recording shows both numbers (tests/recordings/pbs/qrerun).
    """
    sbf.say(PUT, MADE)
    found = server_hook.start("image=debian12:subnet=10.0.0.0/24", run_version=1)
    assert (found.accepted, found.changed) == (True, {}), found
    guest = {"image": "debian12", "memory_mb": 256, "cpus": 1}
    assert sbf.asked == [
        (
            PUT,
            {
                "attempt": 2,
                "spec": {
                    "owner": "alice",
                    "hosts": ["n1", "n2"],
                    "guests": [
                        {"name": "g1", "host": "n1", "addresses": ["10.0.0.1/24"], **guest},
                        {"name": "g2", "host": "n2", "addresses": ["10.0.0.2/24"], **guest},
                    ],
                    "lease_s": 3600 + 600 + 300,
                    "deadline_s": 450,
                },
            },
        )
    ]


def test_the_deadline_is_earlier_than_the_default_patience_of_hosts(server_hook: ServerHook, sbf: ScriptedSbf) -> None:
    server_hook.settings["setup"] = 3600
    sbf.say(PUT, MADE)
    server_hook.start("image=debian12")
    ((_, body),) = sbf.asked
    assert body["spec"]["deadline_s"] < MOM_SETTINGS["patience"].default


def test_repeated_requests_of_an_attempt_have_the_same_request_id(server_hook: ServerHook, sbf: ScriptedSbf) -> None:
    sbf.say(PUT, problem(503, "database-unavailable", "the database does not answer"), MADE)
    server_hook.start("image=debian12", run_version=1)
    found = server_hook.start("image=debian12", run_version=1)
    assert "vcluster: cluster 12.pbssrv: request ID job-12.pbssrv-2" in logged(found)
    assert [sent["x-request-id"] for sent in sbf.headers] == ["job-12.pbssrv-2"] * 2
    assert len({sent["traceparent"] for sent in sbf.headers}) == 1
    assert TraceParent.matches(sbf.headers[0]["traceparent"])


def test_a_home_without_readable_keys_does_not_stop_a_job(server_hook: ServerHook, sbf: ScriptedSbf) -> None:
    sbf.say(PUT, MADE)
    found = server_hook.start("image=debian12", owner="nobody-here")
    assert (found.accepted, "authorized_keys" in sbf.asked[0][1]["spec"]) == (True, False)
    assert "cluster 12.pbssrv: no keys of nobody-here: user nobody-here is unknown on host " in logged(found)


@pytest.mark.parametrize(("setting", "keys"), [(True, ("ssh-ed25519 AAAA",)), (False, ())])
def test_the_keys_of_the_users_home_are_added(
    monkeypatch: pytest.MonkeyPatch, setting: bool, keys: tuple[str, ...]
) -> None:
    monkeypatch.setattr(runjob, "read_user_keys", lambda user: ["ssh-ed25519 AAAA"] if user == "alice" else [])
    event = SimpleNamespace(settings=SimpleNamespace(user_keys=setting))
    order = runjob.ClusterOrder(JobRequest(), JobRun("12.pbssrv", "alice", ("n1",), 60), 1)
    assert runjob._add_user_keys(event, order).run.ssh_keys == keys  # type: ignore[arg-type] # only its settings are read


def test_the_first_run_is_number_one(server_hook: ServerHook, sbf: ScriptedSbf) -> None:
    sbf.say(PUT, MADE)
    assert server_hook.start("image=debian12", key="12.PBSsrv").accepted
    assert [document["attempt"] for _, document in sbf.asked] == [1]


def test_settings_map_names_of_hosts(server_hook: ServerHook, sbf: ScriptedSbf) -> None:
    sbf.say(PUT, MADE)
    server_hook.settings["hosts"] = {"n1": "brno-h1"}
    assert server_hook.start("image=debian12").accepted
    assert sbf.asked[0][1]["spec"]["hosts"] == ["brno-h1", "n2"]


def test_the_request_file_is_not_read_again_at_the_start(server_hook: ServerHook, sbf: ScriptedSbf) -> None:
    sbf.say(PUT, MADE)
    kept = json.dumps({"hosts": [{"guests": [{"image": "a", "name": "head"}]}, {"guests": []}]})
    assert server_hook.start("spec=/gone.yaml", vcluster_spec=kept).accepted
    assert [guest["name"] for guest in sbf.asked[0][1]["spec"]["guests"]] == ["head"]


@pytest.mark.parametrize(
    ("answer", "message", "wait", "hold"),
    [
        (
            problem(409, "host-not-linked", "host n2 of site brno has no link: link one"),
            "vcluster: host n2 has no switch port in SBF" + AGAIN,
            120,
            None,
        ),
        (
            problem(404, "no-such-host", "host n1 is not known"),
            "vcluster: host n1 has no switch port in SBF" + AGAIN,
            120,
            None,
        ),
        (
            problem(409, "no-vlan-free", "no VLAN is free at brno"),
            "vcluster: no VLAN is free at brno" + AGAIN,
            120,
            None,
        ),
        (
            problem(409, "vlan-not-in-pool", "VLAN 1203 is not in the pool of site brno (100-199,300)"),
            "vcluster: VLAN 1203 is not in the pool of site brno (100-199,300)",
            None,
            "u",
        ),
        (
            problem(409, "quota-exceeded", "alice already has 2 clusters (limit 2)"),
            "vcluster: alice already has 2 clusters (limit 2)",
            None,
            None,
        ),
        (
            problem(409, "attempt-waits", "cluster 12.pbssrv: ask again; switch sw1 at brno has not confirmed"),
            "vcluster: the network of the job's former run is still being removed "
            "(switch sw1 at brno has not confirmed)" + AGAIN,
            5,
            None,
        ),
        (
            problem(422, "bad-input", "spec.owner: no"),
            "vcluster: SBF cannot create this network: spec.owner: no",
            None,
            "s",
        ),
        (
            problem(403, "forbidden", "pbs (user) may not create"),
            "vcluster: SBF refused: pbs (user) may not create" + AGAIN,
            120,
            None,
        ),
        (
            problem(403, "not-admitted", "host n1 is for all users, not for a batch job of alice"),
            "vcluster: SBF refused: host n1 is for all users, not for a batch job of alice" + AGAIN,
            120,
            None,
        ),
        (
            problem(422, "beyond-limit", "spec.guests: expected at most 4096, got 5000"),
            "vcluster: spec.guests: expected at most 4096, got 5000",
            None,
            "u",
        ),
        (problem(401, "unauthenticated", "no token"), "vcluster: SBF refused: no token" + AGAIN, 120, None),
        (problem(500, "error", "a fault"), "vcluster: SBF refused: a fault" + AGAIN, 120, None),
        (problem(429, "too-many-requests", "60 a minute"), "vcluster: 60 a minute" + AGAIN, 5, None),
        (
            problem(503, "database-unavailable", "its database is away"),
            "vcluster: SBF does not answer (its database is away)" + AGAIN,
            120,
            None,
        ),
    ],
    ids=lambda value: value[1]["type"].rpartition(":")[2] if isinstance(value, tuple) else "",
)
def test_a_job_without_a_network_is_requeued_with_the_reason(  # noqa: PLR0913, PLR0917 - a table
    server_hook: ServerHook,
    sbf: ScriptedSbf,
    answer: tuple[int, object],
    message: str,
    wait: int | None,
    hold: str | None,
) -> None:
    sbf.say(PUT, answer)
    found = server_hook.start("image=debian12")
    assert (found.accepted, found.message) == (False, message)
    assert found.changed.get("Hold_Types") == hold
    assert waited(found.changed.get("Execution_Time")) == wait


def test_a_failed_start_is_reported_and_delays_the_job(server_hook: ServerHook, sbf: ScriptedSbf) -> None:
    """The first host stores the reason in a job variable. PBS calls the server hook again in the same second."""
    text = "vcluster: guest g2 does not answer at 10.0.0.3, nor at 10.0.0.4" + AGAIN
    left = {"VCLUSTER_LAST": format_reason(3, text)}
    sbf.say(DELETE, (202, {}))
    found = server_hook.start("image=debian12", run_version=3, variables=left)
    assert (found.accepted, found.message) == (False, text)
    assert waited(found.changed["Execution_Time"]) == 120
    assert found.changed["Variable_List.VCLUSTER_TOLD"] == "3"
    assert [line for line, _ in sbf.asked] == [DELETE]
    sbf.say(PUT, MADE)
    assert server_hook.start("image=debian12", run_version=3, variables={**left, "VCLUSTER_TOLD": "3"}).accepted


def waited(moment: str | None) -> int | None:
    """Return 5 or 120, whichever is closer to the seconds from now until ``moment``; None if ``moment`` is None."""
    if moment is None:
        return None
    return min((5, 120), key=lambda wait: abs(int(moment) - time.time() - wait))


def test_a_name_that_is_in_use_requeues_the_job(server_hook: ServerHook, sbf: ScriptedSbf) -> None:
    sbf.say(PUT, problem(409, "name-taken", "the name mine is taken by cluster 11.pbssrv"))
    sbf.say(NETWORK, (200, [{"key": "11.pbssrv"}]))
    found = server_hook.start("image=debian12:name=mine")
    assert found.message == "vcluster: 'mine' is already running as job 11.pbssrv" + AGAIN


def test_a_joining_job_gets_free_addresses(server_hook: ServerHook, sbf: ScriptedSbf) -> None:
    sbf.say(NETWORK, (200, [member("11.pbssrv", "10.0.0.1/24", "10.0.0.2/24"), member("10.pbssrv", "10.0.0.3/24")]))
    sbf.say(PUT, MADE)
    assert server_hook.start("image=debian12:net=mine").accepted
    spec = sbf.asked[1][1]["spec"]
    assert spec["joins"] == "11.pbssrv"
    assert [guest["addresses"] for guest in spec["guests"]] == [["10.0.0.4/24"], ["10.0.0.5/24"]]


def test_jobs_that_join_simultaneously_get_different_addresses(server_hook: ServerHook, sbf: ScriptedSbf) -> None:
    root = member("11.pbssrv", "10.0.0.1/24")
    sbf.say(NETWORK, (200, [root]), (200, [root, member("13.pbssrv", "10.0.0.2/24", "10.0.0.3/24")]))
    sbf.say(PUT, problem(409, "guest-taken", "10.0.0.2 is taken"), MADE)
    assert server_hook.start("image=debian12:net=mine").accepted
    assert [guest["addresses"] for guest in sbf.asked[3][1]["spec"]["guests"]] == [["10.0.0.4/24"], ["10.0.0.5/24"]]


def test_a_network_without_free_addresses_requeues_the_job(server_hook: ServerHook, sbf: ScriptedSbf) -> None:
    sbf.say(NETWORK, (200, [member("11.pbssrv", "10.0.0.1/30")]))
    found = server_hook.start("image=debian12:net=mine")
    text = "vcluster: subnet: expected 2 free addresses for guests, got 10.0.0.0/30 with 1"
    assert (found.message, "Execution_Time" in found.changed) == (text + AGAIN, True)


def test_a_network_that_ended_requeues_the_job(server_hook: ServerHook, sbf: ScriptedSbf) -> None:
    sbf.say(NETWORK, (200, []))
    found = server_hook.start("image=debian12:net=mine")
    assert found.message == "vcluster: network 'mine' is not running" + AGAIN
    assert "Execution_Time" in found.changed


def test_an_unshared_network_causes_a_user_hold(server_hook: ServerHook, sbf: ScriptedSbf) -> None:
    sbf.say(NETWORK, (200, [member("11.pbssrv", "10.0.0.1/24")]))
    sbf.say(PUT, problem(403, "forbidden", "alice may not join"))
    found = server_hook.start("image=debian12:net=mine")
    assert found.message == "vcluster: network 'mine' is not shared with alice"
    assert found.changed == {"Hold_Types": "u"}


@pytest.mark.parametrize(
    "answer",
    [
        problem(409, "other-spec", "cluster 12.pbssrv exists and is active, and differs from this request in hosts"),
        problem(410, "gone", "attempt 1 is over"),
        (200, {"state": "released"}),
        (200, {"state": "failing"}),
    ],
    ids=["another spec", "a later attempt", "released", "failing"],
)
def test_a_job_with_a_used_run_number_starts_and_fails(
    server_hook: ServerHook, sbf: ScriptedSbf, answer: tuple[int, object]
) -> None:
    """After a rejection, PBS would not increase the run number, so the hook would reject every later start too."""
    sbf.say(PUT, answer)
    found = server_hook.start("image=debian12")
    assert found.accepted
    assert "attempt 1 is over" in logged(found)


def test_the_cluster_of_a_used_run_number_is_ended(server_hook: ServerHook, sbf: ScriptedSbf) -> None:
    sbf.say(
        PUT,
        problem(409, "other-spec", "cluster 12.pbssrv exists and is active, and differs from this request in hosts"),
    )
    server_hook.start("image=debian12")
    assert sbf.asked[1] == ("DELETE /v1/clusters/12.pbssrv?attempt=1&owner=alice", None)


def test_a_request_that_does_not_fit_causes_a_user_hold(server_hook: ServerHook) -> None:
    found = server_hook.start("image=debian12:subnet=10.0.0.0/31:guests=2", select="2:ncpus=2")
    assert found.message == "vcluster: subnet: expected 4 free addresses for guests, got 10.0.0.0/31 with 2"
    assert found.changed == {"Hold_Types": "u"}


@pytest.mark.parametrize(
    ("line", "shape", "message"),
    [
        (
            "image=a",
            {"place": "free"},
            "vcluster: a cluster needs one exclusive host per chunk: use -l place=scatter:excl",
        ),
        ("image=a", {"walltime": "200:00:00"}, "vcluster: a walltime is required, at most 168:00:00"),
        ("spec=/x", {}, "vcluster: spec: /x was not read at submission; submit the job again"),
    ],
)
def test_a_request_invalid_at_the_start_causes_a_user_hold(
    server_hook: ServerHook, sbf: ScriptedSbf, line: str, shape: dict[str, Any], message: str
) -> None:
    found = server_hook.start(line, **shape)
    assert (found.message, found.changed, sbf.asked) == (message, {"Hold_Types": "u"}, [])


def test_a_job_of_an_array_is_accepted(server_hook: ServerHook, sbf: ScriptedSbf) -> None:
    """If the hook rejected the job, the scheduler would try to start it again forever (OpenPBS 23.06)."""
    assert server_hook.start("image=debian12", key="5[1].pbssrv").accepted
    found = server_hook.end(1, key="5[1].pbssrv")
    assert (found.accepted, found.log, sbf.asked) == (True, (), [])


def test_an_unexpected_error_holds_the_job(server_hook: ServerHook, sbf: ScriptedSbf) -> None:
    sbf.say(NETWORK, (200, [{"no": "key"}]))
    found = server_hook.start("image=debian12:net=mine")
    assert found.message == "vcluster: internal error of the hook; inform the administrators of the batch system"
    assert found.changed == {"Hold_Types": "s"}
    assert "KeyError" in logged(found)


def test_invalid_settings_delay_a_job_without_a_hold(server_hook: ServerHook) -> None:
    server_hook.settings["colour"] = "red"
    assert list(server_hook.start("image=debian12").changed) == ["Execution_Time"]


def test_the_end_of_a_run_ends_exactly_its_cluster(server_hook: ServerHook, sbf: ScriptedSbf) -> None:
    sbf.say("DELETE /v1/clusters/12.pbssrv?attempt=3&owner=alice", (202, {}))
    assert server_hook.end(3).accepted
    assert sbf.asked == [("DELETE /v1/clusters/12.pbssrv?attempt=3&owner=alice", None)]


@pytest.mark.parametrize("answer", [problem(404, "not-found", "never seen"), problem(410, "gone", "a later one")])
def test_the_end_of_a_run_without_cluster_is_silent(
    server_hook: ServerHook, sbf: ScriptedSbf, answer: tuple[int, object]
) -> None:
    sbf.say("DELETE /v1/clusters/12.pbssrv?attempt=1&owner=alice", answer)
    found = server_hook.end()
    assert (found.accepted, found.log) == (True, ())


def test_a_too_long_answer_is_reported_as_unusable(server_hook: ServerHook, sbf: ScriptedSbf) -> None:
    sbf.say(PUT, (200, "x" * (4 << 20)))
    found = server_hook.start("image=debian12")
    assert found.message == (
        "vcluster: the answer of SBF cannot be used (expected at most 4194304 bytes, got more)" + AGAIN
    )


def test_reconciliation_ends_the_cluster_if_sbf_does_not_answer(server_hook: ServerHook) -> None:
    server_hook.sbf = "http://127.0.0.1:1"
    found = server_hook.end()
    assert found.accepted
    assert logged(found) == (
        "vcluster: cluster 12.pbssrv, attempt 1 (request ID job-12.pbssrv-1) will be ended by reconciliation: "
        "SBF does not answer: Connection refused"
    )


def test_a_job_that_never_ran_has_nothing_to_end(server_hook: ServerHook, sbf: ScriptedSbf) -> None:
    assert server_hook.end(0).accepted
    assert sbf.asked == []
