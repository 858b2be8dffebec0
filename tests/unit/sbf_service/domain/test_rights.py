"""Tests of the rights of all roles. The expected values are a second, independent table."""

import pytest

from sbf_service.domain.authentication import Principal
from sbf_service.domain.rights import WHOLE_SERVICE, Action, ProtectedResource, describe_denial, is_allowed
from virtcloud.model.access import Role
from virtcloud.model.values import Name

BRNO = frozenset({Name("brno")})
ALICE = Principal("alice", Role.USER)
IVO = Principal("ivo", Role.SITE_ADMINISTRATOR, BRNO)
EVA = Principal("eva", Role.OPERATOR)
AGENT = Principal("brno-h1", Role.AGENT)
PBS = Principal("pbs", Role.SCHEDULER)
STARTER = Principal("brno-h9", Role.JOB_STARTER)
EVERYBODY = (ALICE, IVO, EVA, AGENT, PBS, STARTER)

OWN = ProtectedResource("cluster a", owner="alice", sites=frozenset({Name("praha")}))
AT_BRNO = ProtectedResource("cluster b", owner="bob", sites=frozenset({Name("brno"), Name("praha")}))
ON_HOST = ProtectedResource(
    "cluster h",
    owner="bob",
    elements=frozenset({Name("brno-h1"), Name("brno-sw1")}),
    hosts=frozenset({Name("brno-h1")}),
)
ON_GATEWAY = ProtectedResource("cluster g", owner="bob", elements=ON_HOST.elements, hosts=frozenset({Name("brno-h2")}))
ON_STARTER = ProtectedResource("cluster j", owner="bob", elements=frozenset({Name("brno-h9"), Name("brno-sw1")}))
ELSEWHERE = ProtectedResource("cluster p", owner="bob", sites=frozenset({Name("praha")}))
IMAGE = ProtectedResource("image a", owner="alice")
SITE_BRNO = ProtectedResource("site brno", sites=BRNO)
SITE_PRAHA = ProtectedResource("site praha", sites=frozenset({Name("praha")}))
HOST = ProtectedResource("element brno-h1", elements=frozenset({Name("brno-h1")}), sites=BRNO)
OTHER = ProtectedResource("element brno-h2", elements=frozenset({Name("brno-h2")}), sites=BRNO)


@pytest.mark.parametrize(
    ("action", "subject", "allowed"),
    [
        (Action.READ_CLUSTER, OWN, {"alice", "eva", "pbs", "brno-h9"}),
        (Action.READ_CLUSTER, AT_BRNO, {"ivo", "eva", "pbs", "brno-h9"}),
        (Action.READ_CLUSTER, ELSEWHERE, {"eva", "pbs", "brno-h9"}),
        (Action.READ_CLUSTER, ON_HOST, {"eva", "pbs", "brno-h1", "brno-h9"}),
        (Action.CREATE_CLUSTER, ProtectedResource(owner="alice"), {"alice", "eva", "pbs"}),
        (Action.CREATE_CLUSTER, ProtectedResource(owner="bob"), {"eva", "pbs"}),
        (Action.CREATE_CLUSTER, ON_STARTER, {"eva", "pbs", "brno-h9"}),
        (Action.END_CLUSTER, ON_STARTER, {"eva", "pbs", "brno-h9"}),
        (Action.END_CLUSTER, OWN, {"alice", "eva", "pbs"}),
        (Action.END_CLUSTER, AT_BRNO, {"ivo", "eva", "pbs"}),
        (Action.END_CLUSTER, ON_HOST, {"eva", "pbs", "brno-h1"}),
        (Action.END_CLUSTER, ON_GATEWAY, {"eva", "pbs"}),
        (Action.EXTEND_CLUSTER, ON_HOST, {"eva", "pbs"}),
        (Action.EXTEND_CLUSTER, OWN, {"alice", "eva", "pbs"}),
        (Action.SHARE_CLUSTER, OWN, {"alice", "eva"}),
        (Action.SHARE_CLUSTER, AT_BRNO, {"eva"}),
        (Action.EXTEND_CLUSTER, AT_BRNO, {"eva", "pbs"}),
        (Action.VERIFY_CLUSTER, OWN, {"alice", "eva"}),
        (Action.VERIFY_CLUSTER, AT_BRNO, {"ivo", "eva"}),
        (Action.VERIFY_CLUSTER, ELSEWHERE, {"eva"}),
        (Action.VERIFY_CLUSTER, ON_HOST, {"eva"}),
        (Action.CONTROL_GUEST, OWN, {"alice", "eva"}),
        (Action.CONTROL_GUEST, AT_BRNO, {"ivo", "eva"}),
        (Action.CONTROL_GUEST, ELSEWHERE, {"eva"}),
        (Action.CONTROL_GUEST, ON_HOST, {"eva"}),
        (Action.REACH_GUEST, OWN, {"alice", "eva"}),
        (Action.REACH_GUEST, AT_BRNO, {"eva"}),
        (Action.REACH_GUEST, ON_HOST, {"eva"}),
        (Action.JOIN_NETWORK, OWN, {"alice", "eva"}),
        (Action.JOIN_NETWORK, AT_BRNO, {"eva"}),
        (Action.READ_VPN, OWN, {"alice", "eva"}),
        (Action.READ_VPN, AT_BRNO, {"ivo", "eva"}),
        (Action.READ_VPN, ELSEWHERE, {"eva"}),
        (Action.REVOKE_VPN, OWN, {"alice", "eva"}),
        (Action.REVOKE_VPN, AT_BRNO, {"ivo", "eva"}),
        (Action.REVOKE_VPN, ELSEWHERE, {"eva"}),
        (Action.INVITE_USER, OWN, {"alice", "eva"}),
        (Action.INVITE_USER, AT_BRNO, {"eva"}),
        (Action.PUBLISH_GUEST, OWN, {"alice", "eva"}),
        (Action.PUBLISH_GUEST, AT_BRNO, {"eva"}),
        (Action.PUBLISH_GUEST, ELSEWHERE, {"eva"}),
        (Action.RENEW_AUTHORITY, WHOLE_SERVICE, {"eva"}),
        (Action.READ_SITES, WHOLE_SERVICE, {"alice", "ivo", "eva", "pbs"}),
        (Action.READ_QUARANTINE, SITE_BRNO, {"ivo", "eva"}),
        (Action.SET_POOL, SITE_BRNO, {"ivo", "eva"}),
        (Action.SET_POOL, SITE_PRAHA, {"eva"}),
        (Action.DECLARE_CLEAN, SITE_BRNO, {"ivo", "eva"}),
        (Action.DECLARE_CLEAN, SITE_PRAHA, {"eva"}),
        (Action.VERIFY_SITE, SITE_BRNO, {"ivo", "eva"}),
        (Action.VERIFY_SITE, SITE_PRAHA, {"eva"}),
        (Action.READ_TOPOLOGY, WHOLE_SERVICE, {"ivo", "eva", "pbs"}),
        (Action.SET_TOPOLOGY, WHOLE_SERVICE, {"eva"}),
        (Action.SET_SITE, SITE_BRNO, {"ivo", "eva"}),
        (Action.SET_SITE, SITE_PRAHA, {"eva"}),
        (Action.READ_ELEMENT, HOST, {"ivo", "eva", "brno-h1", "pbs"}),
        (Action.READ_ELEMENT, OTHER, {"ivo", "eva", "pbs"}),
        (Action.COMPARE_ELEMENT, HOST, {"ivo", "eva"}),
        (Action.ADOPT_PORT, HOST, {"ivo", "eva"}),
        (Action.RECONCILE_ELEMENT, HOST, {"ivo", "eva"}),
        (Action.RECONCILE_ELEMENT, ProtectedResource("element praha-sw1", sites=SITE_PRAHA.sites), {"eva"}),
        (Action.REPORT_FOR_ELEMENT, HOST, {"eva", "brno-h1"}),
        (Action.REPORT_FOR_ELEMENT, OTHER, {"eva"}),
        (Action.READ_AUDIT, WHOLE_SERVICE, {"eva"}),
        (Action.READ_AUDIT, OWN, {"alice", "eva"}),
        (Action.READ_AUDIT, HOST, {"ivo", "eva"}),
        (Action.MANAGE_TOKENS, WHOLE_SERVICE, {"eva"}),
        (Action.CONFIRM_JOB, WHOLE_SERVICE, {"eva", "pbs"}),
        (Action.READ_QUOTA, OWN, {"alice", "eva", "pbs"}),
        (Action.SET_QUOTA, OWN, {"eva"}),
        (Action.READ_KEYS, OWN, {"alice", "eva"}),
        (Action.CHANGE_KEYS, OWN, {"alice", "eva"}),
        (Action.READ_IMAGE, IMAGE, {"alice", "ivo", "eva"}),
        (Action.READ_IMAGE, ON_HOST, {"ivo", "eva", "brno-h1"}),
        (Action.ADD_IMAGE, IMAGE, {"alice", "eva"}),
        (Action.SHARE_IMAGE, IMAGE, {"alice", "eva"}),
        (Action.REMOVE_IMAGE, IMAGE, {"alice", "eva"}),
        (Action.CERTIFY_IMAGE, SITE_BRNO, {"ivo", "eva"}),
        (Action.CERTIFY_IMAGE, SITE_PRAHA, {"eva"}),
    ],
)
def test_each_role_has_exactly_these_rights(action: Action, subject: ProtectedResource, allowed: set[str]) -> None:
    assert {one.name for one in EVERYBODY if is_allowed(one, action, subject)} == allowed


def test_the_table_contains_every_action() -> None:
    marks = test_each_role_has_exactly_these_rights.pytestmark[0]  # type: ignore[attr-defined]
    assert {row[0] for row in marks.args[1]} == set(Action)


def test_an_agents_name_does_not_match_a_user() -> None:
    """If a host and a user have the same name, neither the user nor the host's agent has the rights of the other."""
    assert not is_allowed(Principal("brno-h1", Role.USER), Action.END_CLUSTER, ON_HOST)
    assert not is_allowed(Principal("brno-h1", Role.USER), Action.REPORT_FOR_ELEMENT, HOST)
    assert not is_allowed(Principal("alice", Role.AGENT), Action.READ_CLUSTER, OWN)


@pytest.mark.parametrize(
    ("who", "action", "subject", "words"),
    [
        (
            ALICE,
            Action.SET_POOL,
            SITE_BRNO,
            (
                "alice (user) may not change the pool of site brno: the action requires a site administrator of brno "
                "or an operator"
            ),
        ),
        (
            AGENT,
            Action.REPORT_FOR_ELEMENT,
            OTHER,
            (
                "brno-h1 (agent) may not report for element brno-h2: the action requires the agent of brno-h2 or an "
                "operator"
            ),
        ),
        (
            IVO,
            Action.EXTEND_CLUSTER,
            AT_BRNO,
            (
                "ivo (site-administrator) may not extend the lease of cluster b: "
                "the action requires its owner (bob), an operator or a scheduler"
            ),
        ),
        (
            Principal("praha-h1", Role.AGENT),
            Action.END_CLUSTER,
            ON_HOST,
            (
                "praha-h1 (agent) may not end cluster h: the action requires its owner (bob), a site "
                "administrator of its site, "
                "the agent of one of its elements, an operator or a scheduler"
            ),
        ),
        (
            PBS,
            Action.SET_TOPOLOGY,
            WHOLE_SERVICE,
            "pbs (scheduler) may not change the topology: the action requires an operator",
        ),
    ],
)
def test_a_denial_names_the_caller_and_entitled_roles(
    who: Principal, action: Action, subject: ProtectedResource, words: str
) -> None:
    assert describe_denial(who, action, subject) == words


@pytest.mark.parametrize(
    ("who", "name"),
    [(ALICE, "alice"), (AGENT, "agent@brno-h1"), (PBS, "scheduler@pbs"), (STARTER, "job-starter@brno-h9")],
)
def test_the_audit_log_distinguishes_people_and_programs(who: Principal, name: str) -> None:
    assert who.who == name
