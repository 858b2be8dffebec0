"""Tests of the decision which user may reach which guest through a gateway by SSH."""

from datetime import UTC, datetime, timedelta

import pytest
from support.gateways.ssh_world import make_segment

from virtcloud.agent.gateway.ssh_admission import ProvenUser, SshSession, find_ended_ssh_sessions, find_target
from virtcloud.model.errors import Forbidden
from virtcloud.model.values import UserName

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
ALICE = ProvenUser("c1", UserName("alice"), 7)
LATER = NOW + timedelta(hours=1)
SESSION = SshSession.model_validate(
    {
        "pid": 1,
        "started": 1,
        "network": "c1",
        "cluster": "c1",
        "user": "alice",
        "guest": "g1@c1",
        "serial": 7,
        "remote": "192.0.2.1 22",
        "expires_at": LATER,
    }
)


def ended(session: SshSession, *users: str, now: datetime = NOW) -> list[str]:
    segments = [make_segment(*users, ends=LATER)] if users else None
    return [found.reason for found in find_ended_ssh_sessions([session], segments, now)]


def test_a_grant_that_has_ended_gives_no_access() -> None:
    with pytest.raises(Forbidden, match="the lease of this cluster has ended"):
        find_target(ALICE, "g1", [make_segment("alice", ends=NOW)], NOW)


def test_the_users_own_guest_precedes_another_members_guest() -> None:
    segment = make_segment("alice", ends=LATER)
    assert segment.ssh is not None
    other = segment.ssh.guests[0].model_copy(update={"cluster": "c2"})
    shared = segment.ssh.model_copy(update={"guests": (other, *segment.ssh.guests)})
    target = find_target(ALICE, "g1", [segment.model_copy(update={"ssh": shared})], NOW)
    assert target.guest.cluster == "c1"


def test_a_session_with_a_grant_continues() -> None:
    assert ended(SESSION, "alice") == []


def test_a_session_without_a_grant_ends() -> None:
    assert ended(SESSION, "bob") == ["the grant or the guest is gone"]


def test_a_session_lasts_until_its_extended_lease_ends() -> None:
    short = SESSION.model_copy(update={"expires_at": NOW})
    assert ended(short, "alice") == []
    assert ended(short, "alice", now=LATER) == ["the lease of the cluster has ended"]


def test_without_a_document_a_session_ends_with_its_lease() -> None:
    assert ended(SESSION) == []
    assert ended(SESSION, now=LATER) == ["the lease of the cluster has ended"]
