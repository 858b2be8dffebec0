"""Checks of a gateway's OpenVPN servers for ``virtcloud doctor --host``."""

import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from virtcloud.agent.files import describe_os_error
from virtcloud.agent.gateway.openvpn_processes import VpnServerRecord, describe_openvpn
from virtcloud.agent.gateway.vpn_gateway import IPV6, RECORD
from virtcloud.model.errors import Refused
from virtcloud.model.vpn import VpnProtocol, VpnServer

SOCKETS: Final = {VpnProtocol.UDP: socket.SOCK_DGRAM, VpnProtocol.TCP: socket.SOCK_STREAM}


def list_vpn_checks(server: VpnServer, folder: Path) -> dict[str, Callable[[], str]]:
    """Return check functions by name. A function returns its observation, or raises Refused or OSError."""
    ports = {
        f"OpenVPN at {protocol} port {port}": partial(_check_port, protocol, port, folder)
        for protocol, port in server.ports.items()
    }
    return {"OpenVPN": describe_openvpn, **ports}


def _check_port(protocol: VpnProtocol, port: int, folder: Path) -> str:
    with suppress(OSError, ValidationError):
        record = VpnServerRecord.model_validate_json((folder / protocol.value / RECORD).read_bytes())
        if record.is_running and record.config:
            return f"running, process {record.pid}"
    family = socket.AF_INET6 if IPV6.exists() else socket.AF_INET
    try:
        with socket.socket(family, SOCKETS[protocol]) as probe:
            if protocol is VpnProtocol.TCP:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # OpenVPN sets this option too
            probe.bind(("", port))
    except OSError as error:
        raise Refused(
            f"the port cannot be used: {describe_os_error(error)}; stop the program that uses the port, or "
            "change the port in the topology"
        ) from error
    return "not running yet; the port is free"
