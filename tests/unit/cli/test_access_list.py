"""Tests of ``virtcloud access list``, ``sessions`` and ``revoke`` with VPN profiles and SSH certificates."""

import json
from typing import Any

import pytest
from support.cli_calls import RunCommand
from support.fake_machine import clusters

from virtcloud.client.ssh_calls import SshCalls
from virtcloud.model.errors import NoSuchCall

SERIAL = 6148914691236517205
PROFILE: dict[str, Any] = {
    "id": "4c1f",
    "cluster": "demo",
    "user": "alice",
    "device": "laptop",
    "fingerprint": "a" * 64,
    "gateways": ["brno-gw"],
    "created_at": "2026-11-23T07:00:00Z",
    "created_by": "alice",
    "expires_at": "2026-11-23T09:00:00Z",
    "lease_ends": "2026-11-23T09:00:00Z",
}
CERTIFICATE: dict[str, Any] = {
    "serial": SERIAL,
    "cluster": "demo",
    "user": "bob",
    "fingerprint": f"SHA256:{'a' * 43}",
    "created_at": "2026-11-23T07:00:00Z",
    "expires_at": "2026-11-23T07:10:00Z",
    "connections": 2,
}
DEVICE: dict[str, Any] = {
    "profile": "4c1f",
    "protocol": "udp",
    "remote": "192.0.2.7:40000",
    "connected_at": "2026-11-23T07:00:00Z",
    "gateway": "brno-gw",
    "user": "alice",
    "device": "laptop",
    "reported_at": "2026-11-23T07:00:00Z",
}
LOGIN: dict[str, Any] = {
    "gateway": "brno-gw",
    "user": "bob",
    "serial": SERIAL,
    "guest": "g1",
    "remote": "192.0.2.8 40000",
    "connected_at": None,
    "reported_at": "2026-11-23T07:00:00Z",
}
DOCUMENTS = {
    "vpn/profiles": [PROFILE],
    "vpn/profiles/4c1f": PROFILE,
    "ssh/certificates": [CERTIFICATE],
    f"ssh/certificates/{SERIAL}": CERTIFICATE,
    "vpn/connections": [DEVICE],
    "ssh/connections": [LOGIN],
}


@pytest.fixture(autouse=True)
def documents(monkeypatch: pytest.MonkeyPatch) -> None:
    for path, document in DOCUMENTS.items():
        monkeypatch.setitem(clusters.DOCUMENTS, f"/v1/clusters/demo/{path}", document)


def test_the_list_has_profiles_and_certificates(run: RunCommand) -> None:
    lines = [line.split() for line in run("access", "list", "demo").output.splitlines()]
    assert [(line[0], line[-1]) for line in lines] == [("kind", "id"), ("vpn", "4c1f"), ("ssh", str(SERIAL))]
    assert "(2 open connections)" in " ".join(lines[2])


def test_sessions_have_devices_and_ssh_connections(run: RunCommand) -> None:
    lines = [line.split() for line in run("access", "sessions", "demo").output.splitlines()]
    assert [(line[0], line[-1]) for line in lines[1:]] == [("laptop", "4c1f"), ("g1", str(SERIAL))]


@pytest.mark.parametrize(("command", "key"), [("list", "device"), ("sessions", "device")])
def test_json_without_a_kind_equals_the_json_of_earlier_versions(run: RunCommand, command: str, key: str) -> None:
    found = json.loads(run("access", command, "demo", "--json").output)
    assert [entry[key] for entry in found] == ["laptop"]


@pytest.mark.parametrize("command", ["list", "sessions"])
def test_json_of_ssh_has_serial_numbers(run: RunCommand, command: str) -> None:
    found = json.loads(run("access", command, "demo", "--kind", "ssh", "--json").output)
    assert [entry["serial"] for entry in found] == [SERIAL]


def test_a_certificate_is_revoked_by_its_serial_number(run: RunCommand) -> None:
    result = run("access", "revoke", "demo", str(SERIAL))
    assert result.output == f"the SSH certificate {SERIAL} of bob for cluster demo is revoked\n"


def test_a_profile_is_revoked_by_its_device(run: RunCommand) -> None:
    result = run("access", "revoke", "demo", "laptop")
    assert result.output == "the profile of device laptop of alice for cluster demo is revoked\n"


@pytest.mark.parametrize("target", ["9" * 20, "-1", "1.5", "phone"])
def test_an_unknown_target_is_refused(run: RunCommand, target: str) -> None:
    result = run("access", "revoke", "demo", "--", target)
    assert (result.exit_code, "devices with profiles: laptop of alice" in result.output) == (2, True), result.output


def test_an_earlier_sbf_lists_profiles_only(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise NoSuchCall("SBF does not have this call")

    monkeypatch.setattr(SshCalls, "ssh_certificates", refuse)
    assert [line.split()[0] for line in run("access", "list", "demo").output.splitlines()] == ["kind", "vpn"]
    assert run("access", "list", "demo", "--kind", "ssh").exit_code == 1
