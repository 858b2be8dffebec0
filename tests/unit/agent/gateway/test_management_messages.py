"""Tests of the parser and the commands of OpenVPN's management interface, with lines of OpenVPN 2.6.14."""

import pytest

from virtcloud.agent.gateway.admission import DeviceRequest
from virtcloud.agent.gateway.management_messages import (
    MAX_ENVIRONMENT,
    ClientRow,
    CommandDone,
    DeviceGone,
    ManagementEvent,
    MessageParser,
    ServerFailed,
    ServerReady,
    StatusDone,
    render_admission,
    render_end,
    render_notice,
    render_refusal,
)

REQUEST = DeviceRequest(7, 1, "f4b393", "p1", "10.50.1.2:47659")


def parse(*lines: str) -> list[ManagementEvent]:
    parser = MessageParser()
    return [event for line in lines if (event := parser.feed(line)) is not None]


def announce(*environment: str, header: str = "CONNECT,7,1") -> list[ManagementEvent]:
    return parse(f">CLIENT:{header}", *(f">CLIENT:ENV,{line}" for line in environment), ">CLIENT:ENV,END")


def test_a_device_is_announced_with_its_certificate_and_address() -> None:
    environment = (
        "untrusted_port=47659",
        "untrusted_ip=10.50.1.2",
        "common_name=p1",
        "tls_digest_sha256_0=f4:b3:93",
        "tls_digest_sha256_1=fb:2a:39",
    )
    assert announce(*environment) == [REQUEST]
    assert announce(*environment, header="REAUTH,7,1") == [REQUEST._replace(renews=True)]


@pytest.mark.parametrize(
    ("address", "remote"), [("::ffff:10.50.1.2", "10.50.1.2:5"), ("2001:db8::1", "[2001:db8::1]:5")]
)
def test_ipv6_addresses_of_devices_are_shortened(address: str, remote: str) -> None:
    (event,) = announce(f"untrusted_ip6={address}", "untrusted_port=5")
    assert isinstance(event, DeviceRequest)
    assert event.remote == remote


@pytest.mark.parametrize(
    ("text", "remote"),
    [
        ("10.50.1.2:5", "10.50.1.2:5"),
        ("::ffff:10.50.1.2:5", "10.50.1.2:5"),
        ("2001:db8::1:5", ""),
        ("2001:db8::1", ""),
        ("udp4:10.50.1.2:5", "10.50.1.2:5"),
        ("udp6:[2001:db8::1]:5", "[2001:db8::1]:5"),
        ("tcp6-server:[2001:db8::1]:5", "[2001:db8::1]:5"),
        ("[2001:db8::1]:5", "[2001:db8::1]:5"),
        ("unknown", ""),
    ],
)
def test_a_row_of_the_status_has_the_present_address(text: str, remote: str) -> None:
    (event,) = parse(f"CLIENT_LIST\tp1\t{text}\t\t\t1\t2\t\t\t\t7", "END")
    assert event == StatusDone((ClientRow(7, "p1", remote, 1, 2),))


def test_a_device_without_certificate_has_no_fingerprint() -> None:
    (event,) = announce("common_name=p1")
    assert isinstance(event, DeviceRequest)
    assert event.fingerprint == ""


def test_a_very_long_announcement_is_cut() -> None:
    (event,) = announce(*(f"UV_{number}=x" for number in range(MAX_ENVIRONMENT)), "common_name=p1")
    assert isinstance(event, DeviceRequest)
    assert event.common_name == ""


def test_other_lines_are_parsed_or_ignored() -> None:
    row = "CLIENT_LIST\tp1\t10.50.1.2:47659\t\t\t2901\t2902\t2026-11-23 10:24:52\t1795429492\tUNDEF\t7\t0\tAES-256-GCM"
    lines = (
        ">INFO:OpenVPN Management Interface Version 5 -- type 'help' for more info",
        ">STATE:1795429488,ASSIGN_IP,,,,,,",
        ">STATE:1795429488,CONNECTED,SUCCESS,,,,,",
        ">CLIENT:ESTABLISHED,7",
        ">CLIENT:ENV,END",
        ">CLIENT:DISCONNECT,7",
        ">CLIENT:ENV,END",
        "SUCCESS: client-auth command succeeded",
        "ERROR: client-kill command failed",
        ">FATAL:TCP/UDP: Socket bind failed",
        "HEADER\tCLIENT_LIST\tCommon Name",
        row,
        "END",
        "END",
    )
    assert parse(*lines) == [
        ServerReady(),
        DeviceGone(7),
        CommandDone(ok=True, text="client-auth command succeeded"),
        CommandDone(ok=False, text="client-kill command failed"),
        ServerFailed("TCP/UDP: Socket bind failed"),
        StatusDone((ClientRow(7, "p1", "10.50.1.2:47659", 2901, 2902),)),
        StatusDone(()),
    ]


def test_commands_name_the_connection_and_the_key() -> None:
    assert render_admission(REQUEST, ["vlan-pvid 100"]) == "client-auth 7 1\nvlan-pvid 100\nEND"
    assert render_admission(REQUEST._replace(renews=True), ["vlan-pvid 100"]) == "client-auth-nt 7 1"
    assert render_refusal(REQUEST, "no grant") == 'client-deny 7 1 "no grant" "no grant"'
    assert render_notice(7, "moved", connects_again=True) == 'client-kill 7 "RESTART,moved"'
    assert render_notice(7, "over", connects_again=False) == 'client-kill 7 "HALT,over"'


@pytest.mark.parametrize(("name", "command"), [("p1", "kill p1"), ("10.0.0.1:5", None), ("", None), ("a b", None)])
def test_only_simple_names_are_used_in_commands(name: str, command: str | None) -> None:
    """OpenVPN would read a name with a colon as an address."""
    assert render_end(name) == command
