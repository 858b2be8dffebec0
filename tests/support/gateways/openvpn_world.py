"""A gateway with real OpenVPN servers and stock OpenVPN clients, in a network namespace of the real kernel."""

import shutil
import socket
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

from support.gateways.vpn_documents import VpnAuthority, VpnDevice
from virtcloud.agent.gateway.openvpn_processes import VpnServerRecord
from virtcloud.agent.gateway.shared_grants import SharedGrants
from virtcloud.agent.gateway.vpn_gateway import VpnGateway
from virtcloud.agent.network.kernel import NetlinkKernel
from virtcloud.model.vpn import VpnGrant, VpnProtocol
from virtcloud.model.wanted import HostWanted, Segment

OPENVPN = shutil.which("openvpn") or ""
UDP, TCP = VpnProtocol.UDP, VpnProtocol.TCP
LIMIT_S = 20.0
TEST_FRAME, SOURCE = b"\x88\xb5", b"\x02\x00\x00\x00\x00\x01"  # an EtherType for local experiments (IEEE 802)


class StockClient:
    """A stock OpenVPN client as on a laptop."""

    def __init__(self, device: VpnDevice, profile: str, folder: Path) -> None:
        self.log = folder / f"client-{time.monotonic_ns()}.log"
        self.profile = folder / f"{self.log.stem}.ovpn"
        self.profile.write_text(profile)
        self.device = f"c{time.monotonic_ns() % 10**8}"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(  # noqa: S603 - OpenVPN
                (OPENVPN, "--config", str(self.profile), "--dev", self.device, "--dev-type", "tap", "--verb", "3"),
                stdout=log,
            )

    def wait_for(self, text: str, count: int = 1) -> str:
        deadline = time.monotonic() + LIMIT_S
        while (output := self.log.read_text()).count(text) < count:
            assert time.monotonic() < deadline, output
            time.sleep(0.02)
        return output

    def wait_until_connected(self) -> str:
        return self.wait_for("Initialization Sequence Completed")

    def send(self, frame_type: bytes, payload: bytes = bytes(46), source: bytes = SOURCE) -> None:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as connection:
            connection.bind((self.device, 0))
            connection.send(b"\xff" * 6 + source + frame_type + payload)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class GatewayWorld:
    """A gateway in a new network namespace, and the authority that signs the certificates of gateway and clients."""

    def __init__(self, kernel: NetlinkKernel, folder: Path, authority: VpnAuthority) -> None:
        self.kernel, self.folder, self.authority = kernel, folder, authority
        self.now: datetime | None = None
        self.clients: list[StockClient] = []
        self.gateway = self.make_gateway()
        self.segments: tuple[Segment, ...] = ()

    def make_gateway(self) -> VpnGateway:
        shared = SharedGrants(clock=lambda: self.now or datetime.now(UTC))
        return VpnGateway(self.kernel, self.folder / "vpn", shared=shared)

    def grant(self, *grants: VpnGrant, vlan: int = 100, mtu: int | None = None) -> None:
        """Set the gateway's wanted state: one network with exactly these grants."""
        segment = Segment.model_validate(
            {"id": f"c{vlan}", "key": "demo", "vlan": vlan, "port": "eth0", "grants": grants, "mtu": mtu}
        )
        self.segments = (segment,)
        self.gateway.receive(HostWanted(segments=self.segments, vpn=self.authority.server), self.segments)

    def connect(
        self,
        device: VpnDevice,
        protocol: VpnProtocol = UDP,
        port: int | None = None,
        address: str = "127.0.0.1",
        options: str = "",
    ) -> StockClient:
        """Start a client that connects to ``address`` and ``port``, by default the port of the gateway's server.

        ``options`` are further lines of the client's configuration.
        """
        profile = f"{self.authority.render_profile(device, address, protocol)}\n{options}"
        if port is not None:
            profile = profile.replace(f"remote {address} 1194", f"remote {address} {port}")
        client = StockClient(device, profile, self.folder)
        self.clients.append(client)
        return client

    def pid(self) -> int:
        return VpnServerRecord.model_validate_json((self.folder / "vpn/udp/record.json").read_bytes()).pid

    def wait_for_profiles(self, *profiles: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while sorted(connection.profile for connection in self.gateway.connections) != sorted(profiles):
            assert time.monotonic() < deadline, self.gateway.connections
            time.sleep(0.02)

    def close(self) -> None:
        for client in self.clients:
            client.close()
        for protocol in VpnProtocol:
            self.gateway.ensure_no_server(protocol)
        self.gateway.close()
