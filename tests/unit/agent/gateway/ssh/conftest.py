import os
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from support.gateways.ssh_world import SshWorld, make_segment
from support.kernel.kernel_links import find_index, link
from support.kernel.network_namespaces import Run

from virtcloud.agent.gateway import ssh_requests
from virtcloud.agent.host_services.server_isolation import join_network_namespace

T = TypeVar("T")


@pytest.fixture(scope="module")
def shared(in_namespace: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshWorld]:
    def start() -> SshWorld:
        link("set", index=find_index("lo"), state="up")
        world = SshWorld(tmp_path_factory.mktemp("ssh"))
        world.gateway.ensure_sshd(world.server)
        return world

    world = in_namespace(start)
    yield world
    world.close()


@pytest.fixture
def world(shared: SshWorld, monkeypatch: pytest.MonkeyPatch) -> SshWorld:
    """A gateway whose sshd is running, with a grant for alice. A user without a grant is refused at once."""
    monkeypatch.setattr(ssh_requests, "GRANT_S", 0.0)
    shared.grant(make_segment("alice"))
    shared.wait_for_sessions(0)
    return shared


@pytest.fixture
def in_gateway(in_namespace: Run, world: SshWorld) -> Run:

    def run(work: Callable[[], T]) -> T:
        def enter() -> T:
            join_network_namespace(os.dup(world.namespace))
            return work()

        return in_namespace(enter)

    return run
