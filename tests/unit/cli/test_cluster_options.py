import pytest

from virtcloud.cli.cluster_options import build_guests, validate_spec
from virtcloud.model.errors import BadInput


def test_guests_get_numbers_and_addresses_host_by_host() -> None:
    guests = build_guests(["brno-h1", "praha-h1"], 2, "busybox", "10.0.0.0/24")
    assert [(guest.name, guest.host, guest.addresses) for guest in guests] == [
        ("g1", "brno-h1", ("10.0.0.1/24",)),
        ("g2", "brno-h1", ("10.0.0.2/24",)),
        ("g3", "praha-h1", ("10.0.0.3/24",)),
        ("g4", "praha-h1", ("10.0.0.4/24",)),
    ]


def test_a_host_may_have_no_guest() -> None:
    assert build_guests(["brno-h1"], 0, "busybox", "10.0.0.0/24") == ()


def test_an_ipv6_network_is_accepted() -> None:
    assert build_guests(["brno-h1"], 1, "busybox", "fd00::/64")[0].addresses == ("fd00::1/64",)


def test_a_network_that_is_too_small_is_bad_input() -> None:
    with pytest.raises(BadInput, match=r"network 10\.0\.0\.0/30 has 2 addresses for 3 guests"):
        build_guests(["brno-h1"], 3, "busybox", "10.0.0.0/30")


@pytest.mark.parametrize("network", ["10.0.0/24", "10.0.0.1/33", "x", "10.0.0.0", "fd00::1"])
def test_a_malformed_network_is_bad_input(network: str) -> None:
    with pytest.raises(BadInput, match=r"expected a network such as 10\.0\.0\.0/24"):
        build_guests(["brno-h1"], 1, "busybox", network)


def test_a_malformed_host_is_bad_input() -> None:
    with pytest.raises(BadInput, match="expected a name"):
        build_guests(["Brno"], 1, "busybox", "10.0.0.0/24")


def test_missing_options_have_the_models_defaults() -> None:
    spec = validate_spec(owner="eva", hosts=("brno-h1",), lease_s=None, deadline_s=None)
    assert (spec.lease_s, spec.deadline_s) == (14400, 120)


def test_a_malformed_owner_is_reported_by_its_key() -> None:
    with pytest.raises(BadInput, match="owner: expected a user name"):
        validate_spec(owner="Eva Nováková", hosts=("brno-h1",))
