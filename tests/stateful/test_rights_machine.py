"""Tests of rights over HTTP under any random sequence of calls of users, administrators, schedulers and agents.

``make test`` always runs the same sequences. ``make test-stateful`` runs further sequences. A failure prints the seed
and the calls.
"""

from collections.abc import Iterator, Mapping

import pytest
from simulation.planting import plant
from stateful.rights_model import USERS
from stateful.rights_sites import RightsMachine
from support.exploration import list_seeds
from support.sbf_fakes.topology_changes import Choice

from sbf_service.http.routes import audit, vpn

STEPS = 60
WEIGHTS: Mapping[str, int] = {
    "request_a_cluster": 24,
    "read_a_cluster": 4,
    "end_a_cluster": 10,
    "extend_a_lease": 3,
    "share_a_network": 5,
    "switch_a_guest": 3,
    "list_clusters": 3,
    "read_the_audit_log": 8,
    "invite": 5,
    "make_a_profile": 5,
    "read_vpn_access": 4,
    "revoke_a_profile": 6,
    "make_a_certificate": 2,
    "publish_a_guest": 3,
    "change_keys": 2,
    "list_images": 2,
    "add_an_image": 3,
    "change_an_image": 4,
    "certify_an_image": 2,
    "set_a_quota": 2,
    "read_a_quota": 1,
    "replace_a_token": 2,
    "use_a_dead_token": 1,
    "read_the_wanted_state": 3,
    "confirm_a_revision": 3,
    "report_trouble": 3,
    "report": 2,
    "read_an_element": 2,
    "administer_an_element": 2,
    "read_the_audit_log_of_an_element": 2,
    "read_a_site": 2,
    "change_a_pool": 2,
    "clean_a_vlan": 2,
    "change_the_topology": 2,
    "confirm_a_job": 3,
    "elements_reconcile": 8,
    "time_passes": 3,
}


def run(machine: RightsMachine, seed: int) -> None:
    try:
        for number in range(STEPS):
            choose = Choice(f"{seed} {number}")
            (name,) = choose.choices(list(WEIGHTS), list(WEIGHTS.values()))
            getattr(machine, name)(choose)
            machine.quotas_agree_with_the_clusters()
    except Exception as error:
        error.add_note("\n".join(machine.log[-40:]))
        raise
    finally:
        machine.close()


@pytest.mark.parametrize("seed", list_seeds(3))
def test_callers_see_and_change_only_what_they_may(seed: int) -> None:
    run(RightsMachine(), seed)


ALICE, BOB, CAROL = USERS


@pytest.fixture
def machine() -> Iterator[RightsMachine]:
    made = RightsMachine()
    yield made
    made.close()


def use_another_users_profile(machine: RightsMachine) -> None:
    profiles = machine.as_operator("/v1/clusters/maple/vpn/profiles")
    profile = next(one for one in profiles if one["user"] == "carol")
    network = machine.newest("maple")
    assert network is not None
    machine.use_profile(BOB, network, profile, "GET")


def read_the_audit_log_of_a_former_key(machine: RightsMachine) -> None:
    machine.call(ALICE, "DELETE", "/v1/clusters/maple")
    machine.settle()
    guests = [{"name": "gq1z", "host": "brno-h1", "image": "debian"}]
    machine.put(CAROL, "maple", {"spec": {"owner": "carol", "guests": guests}})
    machine.read_audit(ALICE, "maple")


def test_a_planted_right_to_others_profiles_is_found(machine: RightsMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    use_another_users_profile(machine)  # without the bug, the same call breaks no invariant
    plant(monkeypatch, vpn, "if user not in {None, found.user}:", "if False:")
    with pytest.raises(AssertionError):
        use_another_users_profile(machine)


def test_a_planted_right_to_others_audit_rows_is_found(machine: RightsMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    read_the_audit_log_of_a_former_key(machine)
    plant(monkeypatch, audit, "return replace(requested, owner=owner)", "return requested")
    with pytest.raises(AssertionError):
        machine.read_audit(ALICE, "maple")
