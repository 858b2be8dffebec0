from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from support.gateways.openvpn_world import UDP, GatewayWorld
from support.gateways.vpn_documents import VpnAuthority
from support.kernel import kernel_links
from support.kernel.network_namespaces import Run

from virtcloud.agent.network.kernel import NetlinkKernel
from virtcloud.model.vpn import VpnProtocol


@pytest.fixture(scope="module")
def authority() -> VpnAuthority:
    return VpnAuthority()


@pytest.fixture
def in_world(in_namespace: Run, authority: VpnAuthority) -> Callable[..., Any]:
    """Return a function that runs code with a gateway. By default, the gateway runs only the OpenVPN server for UDP."""

    def run(work: Callable[[GatewayWorld], object], *protocols: VpnProtocol) -> object:
        def run_opened() -> object:
            with TemporaryDirectory(prefix="vpn-") as temporary, closing(NetlinkKernel()) as kernel:
                kernel.change(kernel_links.find_index("lo"), up=True)
                world = GatewayWorld(kernel, Path(temporary), authority)
                try:
                    for protocol in protocols or (UDP,):
                        world.gateway.ensure_server(protocol, authority.server)
                    return work(world)
                finally:
                    world.close()

        return in_namespace(run_opened)

    return run
