from pathlib import Path

import pytest
from support.cli_calls import CREATE, RunCommand
from support.fake_machine.clusters import FakeSbf

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


@pytest.mark.parametrize(
    ("host", "image", "prefix", "option"),
    [
        ("h1,h2", "busybox", "g", r"--host \(once for each host\)"),
        ("h1", "Busybox", "g", "--image"),
        ("h1", "busybox", "g_", "--guest-prefix"),
    ],
)
def test_a_malformed_name_is_reported_with_its_option(host: str, image: str, prefix: str, option: str) -> None:
    with pytest.raises(BadInput, match=f"^{option}: expected a name"):
        build_guests([host], 1, image, "10.0.0.0/24", prefix)


def test_a_bandwidth_with_a_unit_is_bad_input(run: RunCommand) -> None:
    result = run(*CREATE, "--bandwidth", "4gb")
    assert result.exit_code == 2
    assert "'--bandwidth': expected a whole number of Mbit/s, at least 1, got '4gb'" in result.stderr


@pytest.mark.parametrize(
    ("size", "reason"), [("4gib", ""), ("8mb", ""), ("8", ": a number without a unit is in MiB"), ("17tb", "")]
)
def test_a_malformed_size_has_the_error_of_job_requests(run: RunCommand, size: str, reason: str) -> None:
    result = run(*CREATE, "--memory", size)
    assert result.exit_code == 2
    assert f"'--memory': expected a size from 16mb to 16tb, such as 4gb, got '{size}'{reason}\n" in result.stderr


def test_missing_options_have_the_models_defaults() -> None:
    spec = validate_spec(owner="eva", hosts=("brno-h1",), lease_s=None, deadline_s=None)
    assert (spec.lease_s, spec.deadline_s) == (14400, 120)


def test_a_malformed_owner_is_reported_by_its_key() -> None:
    with pytest.raises(BadInput, match="owner: expected a user name"):
        validate_spec(owner="Eva Nováková", hosts=("brno-h1",))


def test_user_keys_and_user_data_are_part_of_the_spec(run: RunCommand, sbf: FakeSbf, tmp_path: Path) -> None:
    key, config = tmp_path / "id.pub", tmp_path / "config.yaml"
    key.write_text("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICV4Rg1MXTHEvoTqFY3ldwZh9dYVIQFVY1pW0Sx6tWc3 eva@x\n")
    config.write_text("#cloud-config\npackages: [htop]\n")
    options = ("--user", "me", "--ssh-key", str(key), "--user-data", str(config))
    run("cluster", "create", "demo", "--host", "brno-h1", "--image", "busybox", "--no-wait", *options)
    (requested,) = (request.spec for request in sbf.requests)
    assert (requested.user, requested.authorized_keys) == ("me", (key.read_text().strip(),))
    assert [guest.user_data for guest in requested.guests] == [config.read_text()]


def test_user_data_that_is_no_cloud_config_is_not_sent(run: RunCommand, sbf: FakeSbf) -> None:
    options = ("--host", "brno-h1", "--image", "busybox", "--user-data", "-")
    result = run("cluster", "create", "demo", *options, stdin="#!/bin/sh\n")
    assert (result.exit_code, sbf.requests) == (2, [])
    assert "guest g1: user_data: expected cloud-config" in result.stderr
