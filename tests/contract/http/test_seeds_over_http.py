"""Tests that only the agent of a guest's host, and root on SBF's machine, receive the guest's secrets."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.sbf_fakes.http_calls import ask, body
from support.sbf_fakes.world import World, make_world, spec

from virtcloud.model.access import Role
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.wanted import WantedDocument

SECRET = "PRIVATE KEY"  # noqa: S105 - the tests search for this text
WANTED = "/v1/elements/brno-h1/wanted"
HIDDEN = "*" * 10


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    installation = make_world(tmp_path)
    installation.furnish()
    installation.put("demo", spec("brno-h1", "brno-h2", name="ring"))
    installation.put("m1", ClusterSpec.model_validate({"owner": "alice", "joins": "ring", "hosts": ["praha-h1"]}))
    installation.settle()
    yield installation
    installation.close()


def test_an_agent_receives_only_secrets_of_its_own_guests(world: World) -> None:
    answer = ask(world, "GET", WANTED, token=world.token(Role.AGENT, "brno-h1"))
    (segment,) = WantedDocument.model_validate_json(answer.text).wanted.segments
    assert answer.text.count(SECRET) == 4  # the first and the last line of the host key and of the cluster key
    assert [peer.name for peer in segment.peers] == ["g1", "g2"]
    other = ask(world, "GET", "/v1/elements/praha-h1/wanted", token=world.token(Role.AGENT, "praha-h1"))
    assert (SECRET in other.text, "ssh-ed25519" in other.text) == (False, True)


def test_an_operator_with_a_token_receives_asterisks(world: World) -> None:
    answer = ask(world, "GET", WANTED, token=world.token(Role.OPERATOR, "eva"))
    seed = answer.json()["wanted"]["segments"][0]["guests"][0]["seed"]
    assert (seed["host_key"], seed["cluster_key"], SECRET in answer.text) == (HIDDEN, HIDDEN, False)


def test_root_on_sbfs_machine_receives_the_secrets(world: World) -> None:
    assert SECRET in ask(world, "GET", WANTED).text


def test_a_waiting_agent_receives_the_secrets(world: World) -> None:
    token = world.token(Role.AGENT, "brno-h1")
    assert SECRET in ask(world, "GET", f"{WANTED}?after=0&wait=1", token=token).text


def test_other_answers_rows_and_log_lines_have_no_secret(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    paths = ("clusters/demo", "clusters", "elements/brno-h1", "elements/brno-h1/difference", "audit?limit=1000")
    texts = [ask(world, "GET", f"/v1/{path}").text for path in paths]
    texts.append(ask(world, "PUT", "/v1/clusters/new?dry_run=true", body("brno-h1")).text)
    texts += [f"{row.why} {row.difference}" for row in world.audit()]
    captured = capsys.readouterr()
    assert SECRET not in "".join((*texts, captured.out, captured.err))
