from pathlib import Path

from support.gateways.vpn_documents import make_server

from virtcloud.agent.gateway.openvpn_config import DEVICE_WAITS_S, KEEPALIVE, ServerAccount, render_config
from virtcloud.model.vpn import VpnProtocol


def test_devices_connect_again_before_a_server_refuses_them() -> None:
    """After a refusal, the device's program ends.

    For a server, OpenVPN doubles the second number of ``keepalive`` (openvpn(8)).
    """
    config = render_config(make_server(), VpnProtocol.UDP, ServerAccount("nobody", "nogroup"), Path("/"), ipv6=False)
    (server_waits,) = [int(line.split()[1]) for line in config.splitlines() if line.startswith("hand-window ")]
    silence = int(KEEPALIVE.split()[1])
    assert server_waits > DEVICE_WAITS_S + 2 * silence + silence
