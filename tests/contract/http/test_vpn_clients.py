"""Tests of ``virtcloud access`` against a real SBF, and of its profiles with the real openvpn."""

import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvicorn
from click.testing import CliRunner, Result
from sbf_fakes.vpn_world import furnish, grants_of
from sbf_fakes.world import World, make_world, spec

from sbf_service.server import make_server_config
from virtcloud.cli import main
from virtcloud.model.access import Role

OPENVPN = shutil.which("openvpn")
needs_openvpn = pytest.mark.skipif(OPENVPN is None, reason="NOT TESTED: openvpn is not installed")


@dataclass
class Served:
    """A world that is served on the loopback, and whose agents confirm everything at once."""

    world: World
    url: str
    folder: Path

    def run(self, *arguments: str, user: str = "alice") -> Result:
        file = self.folder / f"{user}.token"
        file.write_text(self.world.token(Role.USER, user))
        file.chmod(0o600)
        return CliRunner().invoke(main, ["--url", self.url, "--token-file", str(file), "access", *arguments])


@contextmanager
def confirming(world: World) -> Iterator[None]:
    stop = threading.Event()

    def confirm() -> None:
        while not stop.wait(0.05):
            world.settle()

    thread = threading.Thread(target=confirm)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with ExitStack() as stack:
        world = make_world(tmp_path)
        world.clock.stands = False
        stack.callback(world.close)
        furnish(world)
        world.put("demo", spec("brno-h1"))
        world.settle()
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        server = uvicorn.Server(make_server_config(world.service, None))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        stack.callback(thread.join)
        stack.callback(setattr, server, "should_exit", True)
        while not server.started:
            time.sleep(0.01)
        stack.enter_context(confirming(world))
        yield Served(world, f"http://127.0.0.1:{listening.getsockname()[1]}", tmp_path)


def test_a_profile_is_written_for_its_owner_only(served: Served) -> None:
    file = served.folder / "my.ovpn"
    result = served.run("profile", "demo", "--device", "laptop", "--output", str(file))
    assert (result.exit_code, file.stat().st_mode & 0o777) == (0, 0o600), result.output
    assert "ready: connect with" in result.stderr
    assert grants_of(served.world, "brno-gw")[0].device == "laptop"
    assert "PRIVATE KEY" not in str([row.why for row in served.world.audit()])
