"""Tests of the checks that ``virtcloud doctor`` makes of a gateway's VPN."""

import socket
from pathlib import Path

import pytest
from support.gateways.vpn_documents import make_server

from virtcloud.agent.gateway import openvpn_processes
from virtcloud.agent.gateway.vpn_checks import list_vpn_checks
from virtcloud.model.errors import Refused
from virtcloud.model.vpn import VpnProtocol


@pytest.mark.parametrize(
    ("protocol", "kind"), [(VpnProtocol.UDP, socket.SOCK_DGRAM), (VpnProtocol.TCP, socket.SOCK_STREAM)]
)
def test_a_port_of_another_program_fails_the_check(tmp_path: Path, protocol: VpnProtocol, kind: int) -> None:
    with socket.socket(socket.AF_INET, kind) as other:
        other.bind(("127.0.0.1", 0))
        if protocol is VpnProtocol.TCP:
            other.listen()
        port = other.getsockname()[1]
        checks = list_vpn_checks(make_server(ports={protocol: port}), tmp_path)
        with pytest.raises(Refused, match="Address already in use; stop the program that uses the port"):
            checks[f"OpenVPN at {protocol} port {port}"]()
    assert checks[f"OpenVPN at {protocol} port {port}"]() == "not running yet; the port is free"


def test_a_missing_openvpn_fails_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvpn_processes, "SEARCH_PATH", str(tmp_path))
    with pytest.raises(Refused, match="apt-get install openvpn"):
        list_vpn_checks(make_server(), tmp_path)["OpenVPN"]()


def test_an_old_openvpn_fails_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvpn_processes, "SEARCH_PATH", str(tmp_path))
    (tmp_path / "openvpn").write_text("#!/bin/sh\necho OpenVPN 2.4.12 x86_64-redhat-linux-gnu\n")
    (tmp_path / "openvpn").chmod(0o755)
    with pytest.raises(Refused, match=r"expected OpenVPN 2\.6 or later, found OpenVPN 2\.4\.12"):
        list_vpn_checks(make_server(), tmp_path)["OpenVPN"]()
