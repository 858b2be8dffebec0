"""Tests that a job starter's token has no effect until the batch server confirms the job."""

from typing import Any

import httpx
import pytest
from support.sbf_fakes.http_calls import ask, problem
from support.sbf_fakes.world import World, spec

from sbf_service.store.clusters.job_proofs import MAX_OPEN_QUESTIONS
from virtcloud.model.access import Role

KEY = "7.torque"
CLUSTER = f"/v1/clusters/{KEY}"


def request_cluster(
    world: World, *hosts: str, host: str = "brno-h1", attempt: int = 1, **changes: Any
) -> httpx.Response:
    token = world.token(Role.JOB_STARTER, host)
    wanted = {"spec": spec(*hosts, **changes).model_dump(mode="json"), "attempt": attempt}
    return ask(world, "PUT", CLUSTER, wanted, token=token)


def list_open_requests(world: World, server: str = "torque") -> list[str]:
    keys: list[str] = ask(world, "GET", f"/v1/jobs?server={server}", token=world.token(Role.SCHEDULER, "pbs")).json()
    return keys


def confirm(world: World, *hosts: str, owner: str = "alice", **statement: object) -> None:
    document = {"runs": True, "owner": owner, "hosts": hosts} | statement
    answered = ask(world, "PUT", f"/v1/jobs/{KEY}", document, token=world.token(Role.SCHEDULER, "pbs"))
    assert answered.status_code == 204


def request_and_confirm(
    world: World, *hosts: str, statement: dict[str, Any] | None = None, **changes: Any
) -> httpx.Response:
    assert request_cluster(world, *hosts, **changes).status_code == 503
    confirm(world, *hosts, **(statement or {}))
    return request_cluster(world, *hosts, **changes)


def test_an_unconfirmed_job_creates_no_cluster(world: World) -> None:
    status, kind, detail = problem(request_cluster(world, "brno-h1"))
    assert (status, kind) == (503, "job-unproven")
    assert detail == (
        "cluster 7.torque: the batch server has not confirmed that job 7.torque of alice runs on brno-h1: the question "
        "was sent; try again. The answer comes from the agent on the batch server's host, whose agent.toml must have "
        "the section [scheduler]"
    )
    assert ask(world, "GET", CLUSTER).status_code == 404


def test_an_unconfirmed_job_joins_no_network(world: World) -> None:
    world.put("private", spec("praha-h1"))
    world.settle()
    assert request_cluster(world, "brno-h1", guests=[], hosts=["brno-h1"], joins="private").status_code == 503
    assert world.wanted_of_host("brno-h1").segments == ()


def test_a_confirmed_job_gets_its_cluster(world: World) -> None:
    created = request_and_confirm(world, "brno-h1", "praha-h1")
    assert (created.status_code, created.json()["created_by"]) == (201, "job-starter@brno-h1")


def test_a_batch_server_gets_only_its_own_unanswered_requests(world: World) -> None:
    request_cluster(world, "brno-h1")
    assert (list_open_requests(world), list_open_requests(world, "other"), list_open_requests(world, "TORQUE")) == (
        [KEY],
        [],
        [KEY],
    )
    confirm(world, "brno-h1")
    assert list_open_requests(world) == []


@pytest.mark.parametrize(
    ("statement", "refused"),
    [
        ({"owner": "bob"}, " for alice: the job belongs to bob"),
        ({"hosts": ["praha-h1"]}, ": the batch system runs the job on praha-h1, not on brno-h1"),
    ],
)
def test_a_confirmation_of_another_owner_or_host_is_refused(
    world: World, statement: dict[str, object], refused: str
) -> None:
    request_cluster(world, "brno-h1")
    confirm(world, "brno-h1", **statement)  # type: ignore[arg-type]
    assert problem(request_cluster(world, "brno-h1")) == (
        403,
        "forbidden",
        f"brno-h1 (job-starter) may not create the cluster of job 7.torque{refused}",
    )


def test_a_guest_outside_the_jobs_hosts_is_refused(world: World) -> None:
    request_cluster(world, "brno-h1", "praha-h1")
    confirm(world, "brno-h1")
    assert problem(request_cluster(world, "brno-h1", "praha-h1"))[2] == (
        "brno-h1 (job-starter) may not create the cluster of job 7.torque on praha-h1: the batch system runs the job "
        "on brno-h1"
    )


JOINS: dict[str, Any] = {"guests": [], "hosts": ["brno-h1"], "joins": "private"}


def test_a_network_the_job_did_not_request_is_refused(world: World) -> None:
    world.put("private", spec("praha-h1"))
    request_cluster(world, **JOINS)
    confirm(world, "brno-h1")
    assert problem(request_cluster(world, **JOINS))[2].endswith(
        "in network private: the job requested no network to join"
    )


def test_a_refused_job_is_confirmed_again(world: World) -> None:
    world.put("private", spec("praha-h1"))
    request_cluster(world, **JOINS)
    confirm(world, "brno-h1")
    assert request_cluster(world, **JOINS).status_code == 403
    assert request_cluster(world, **JOINS).status_code == 503
    assert list_open_requests(world) == [KEY]
    confirm(world, "brno-h1", network="private")
    assert request_cluster(world, **JOINS).status_code == 201


def test_a_network_requested_by_name_is_joined(world: World) -> None:
    world.put("private", spec("praha-h1", name="lab"))
    request_cluster(world, **JOINS)
    confirm(world, "brno-h1", network="lab")
    assert request_cluster(world, **JOINS).json()["network"] == "private"


def test_a_network_the_owner_may_not_join_is_refused(world: World) -> None:
    world.put("private", spec("praha-h1", owner="bob"))
    request_cluster(world, **JOINS)
    confirm(world, "brno-h1", network="private")
    assert problem(request_cluster(world, **JOINS))[:2] == (403, "forbidden")


def test_a_confirmation_covers_one_request_only(world: World) -> None:
    """The batch server confirmed the job for two hosts. A rerun on other hosts needs another confirmation."""
    request_cluster(world, "brno-h1", "praha-h1")
    confirm(world, "brno-h1", "praha-h1")
    assert request_cluster(world, "brno-h1", "brno-h2").status_code == 503
    assert list_open_requests(world) == [KEY]
    confirm(world, "brno-h1", "brno-h2")
    assert request_cluster(world, "brno-h1", "brno-h2").status_code == 201


def test_a_confirmation_is_used_once(world: World) -> None:
    request_and_confirm(world, "brno-h1")
    world.settle()
    world.delete(KEY)
    world.settle()
    assert problem(request_cluster(world, "brno-h1", attempt=2))[:2] == (503, "job-unproven")


def test_a_confirmation_expires_after_five_minutes(world: World) -> None:
    request_cluster(world, "brno-h1")
    confirm(world, "brno-h1")
    world.clock.advance(301)
    assert request_cluster(world, "brno-h1").status_code == 503


def test_the_confirmation_of_a_queued_job_is_requested_again(world: World) -> None:
    request_cluster(world, "brno-h1")
    confirm(world, runs=False, words="is queued")
    assert "the server answered: job 7.torque is queued; try again" in problem(request_cluster(world, "brno-h1"))[2]
    assert list_open_requests(world) == [KEY]


def test_control_characters_in_a_confirmation_are_replaced(world: World) -> None:
    request_cluster(world, "brno-h1")
    confirm(world, runs=False, words="is\x1b[2J queued")
    assert "job 7.torque is\ufffd[2J queued" in problem(request_cluster(world, "brno-h1"))[2]


def test_an_unconfirmed_higher_attempt_ends_nothing(world: World) -> None:
    request_and_confirm(world, "brno-h1")
    world.settle()
    assert request_cluster(world, "praha-h1", host="praha-h1", attempt=99).status_code == 503
    assert world.view(KEY).state == "active"


def test_requests_of_several_hosts_are_separate(world: World) -> None:
    request_cluster(world, "brno-h1")
    request_cluster(world, "praha-h1", host="praha-h1")
    confirm(world, "brno-h1")
    assert request_cluster(world, "brno-h1").status_code == 201


def test_a_repeated_call_needs_no_confirmation(world: World) -> None:
    request_and_confirm(world, "brno-h1")
    assert request_cluster(world, "brno-h1").status_code == 200


def test_a_host_has_at_most_200_open_requests(world: World) -> None:
    token = world.token(Role.JOB_STARTER, "brno-h1")
    wanted = {"spec": spec("brno-h1").model_dump(mode="json")}
    for number in range(MAX_OPEN_QUESTIONS):
        ask(world, "PUT", f"/v1/clusters/{number}.torque", wanted, token=token)
    assert problem(ask(world, "PUT", "/v1/clusters/more.torque", wanted, token=token))[2] == (
        "brno-h1 waits for the confirmation of 200 other jobs already: try again later"
    )
    assert len(list_open_requests(world)) == MAX_OPEN_QUESTIONS


def test_only_schedulers_and_operators_confirm_jobs(world: World) -> None:
    document = {"runs": True, "owner": "alice", "hosts": ["brno-h1"]}
    token = world.token(Role.JOB_STARTER, "brno-h1")
    assert ask(world, "PUT", f"/v1/jobs/{KEY}", document, token=token).status_code == 403
    assert ask(world, "GET", "/v1/jobs?server=torque", token=token).status_code == 403


def test_a_job_starter_makes_no_dry_run(world: World) -> None:
    token = world.token(Role.JOB_STARTER, "brno-h1")
    wanted = {"spec": spec("brno-h1").model_dump(mode="json")}
    assert ask(world, "PUT", f"{CLUSTER}?dry_run=true", wanted, token=token).status_code == 403
