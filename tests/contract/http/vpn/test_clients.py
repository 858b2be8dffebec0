"""Tests of ``virtcloud access`` against a real SBF."""

import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvicorn
from click.testing import CliRunner, Result
from pydantic import SecretStr
from support.sbf_fakes.vpn_world import furnish, gateway, grants_of, topology_with_gateways
from support.sbf_fakes.world import World, make_world, spec

from sbf_service.server import make_server_config
from virtcloud.cli import main
from virtcloud.cli.vpn_profiles import derive_device_name
from virtcloud.client.sbf import SbfClient
from virtcloud.model.access import Role
from virtcloud.model.vpn import VpnServer

OPENVPN = shutil.which("openvpn")
needs_openvpn = pytest.mark.skipif(OPENVPN is None, reason="NOT TESTED: openvpn is not installed")


@dataclass
class Served:
    """A world whose SBF serves HTTP on the loopback. The world's agents confirm every revision within a second."""

    world: World
    url: str
    folder: Path

    def run(self, *arguments: str, user: str = "alice") -> Result:
        file = self.folder / f"{user}.token"
        file.write_text(self.world.token(Role.USER, user))
        file.chmod(0o600)
        return CliRunner().invoke(main, ["--url", self.url, "--token-file", str(file), "access", *arguments])

    def connect(self) -> SbfClient:
        return SbfClient(self.url, token=lambda: SecretStr(self.world.token(Role.USER, "alice")))


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
    assert f"ready: connect with 'openvpn --config {file}' through" in result.stderr
    assert grants_of(served.world, "brno-gw")[0].device == "laptop"
    assert "PRIVATE KEY" not in str([row.why for row in served.world.audit()])


def test_a_call_waits_until_elements_confirm_a_profile(served: Served) -> None:
    served.world.dead_hosts |= {"brno-gw", "brno-gw2"}
    served.run("profile", "demo", "--device", "laptop", "--no-wait")
    with served.connect() as client:
        (created,) = client.profiles("demo")
        while True:
            before, begin = client.profile("demo", created.id), time.monotonic()
            after = client.profile("demo", created.id, wait=0.5)
            if after == before:  # False if a confirmation that was already under way ended the call early
                break
        assert after.pending
        assert time.monotonic() - begin >= 0.5
        threading.Timer(0.2, served.world.dead_hosts.clear).start()
        assert client.profile("demo", created.id, wait=20).pending != created.pending


def test_a_profile_is_ready_when_one_gateway_confirmed(served: Served) -> None:
    served.world.dead_hosts.add("brno-gw")
    result = served.run("profile", "demo", "--device", "laptop")
    assert (result.exit_code, "through brno-gw2\n" in result.stderr) == (0, True), result.output


def test_stdout_contains_only_the_profile(served: Served) -> None:
    result = served.run("profile", "demo", "--device", "laptop", "--no-wait")
    assert (result.stdout[:11], result.stdout[-7:]) == ("# virtcloud", "</key>\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--device", "X"), "--device: expected a name"),
        (("--output", "/nowhere/my.ovpn"), "--output: expected a file in a folder that you can write"),
        (("--output", "x" * 300), "--output: expected a file that you can write"),
        (("--output", "/"), "--output: expected a new or regular file, got /, which is a folder: name a file"),
        (("--json",), "expected --output FILE with --json"),
    ],
)
def test_bad_input_creates_no_profile(served: Served, arguments: tuple[str, ...], message: str) -> None:
    result = served.run("profile", "demo", *arguments)
    assert (result.exit_code, message in result.stderr) == (2, True), result.output
    assert served.world.audit("vpn_profile_created") == []


def test_a_profile_does_not_replace_a_pipe_or_device(served: Served, tmp_path: Path) -> None:
    """The command writes a new file, and then renames the file to the requested path.

    With root's rights, this renaming would replace /dev/null, or the device behind /dev/stdout.
    """
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        result = served.run("profile", "demo", "--output", str(tmp_path / name))
        assert (result.exit_code, "which is a device or pipe: name a file" in result.stderr) == (2, True), result.output
    assert (tmp_path / "pipe").is_fifo()
    assert served.world.audit("vpn_profile_created") == []


def test_a_profile_is_written_through_a_symbolic_link(served: Served, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("demo.ovpn")
    assert served.run("profile", "demo", "--no-wait", "--output", str(tmp_path / "link")).exit_code == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "demo.ovpn").read_text(encoding="utf-8").startswith("# virtcloud")


def test_revoking_a_device_name_of_two_users_needs_the_user(served: Served) -> None:
    served.run("invite", "demo", "bob")
    for user in ("alice", "bob"):
        served.run("profile", "demo", "--device", "laptop", "--no-wait", user=user)
    refused = served.run("revoke", "demo", "laptop")
    assert (refused.exit_code, "got devices of alice, bob: add --user USER" in refused.stderr) == (2, True)
    assert served.run("revoke", "demo", "laptop", "--user", "bob").exit_code == 0
    assert [grant.user for grant in grants_of(served.world, "brno-gw")] == ["alice"]
    assert "devices with profiles: laptop of alice" in served.run("revoke", "demo", "phone").stderr


def test_the_files_of_a_router_are_for_its_owner_only(served: Served) -> None:
    served.world.put("routed", spec("brno-h1", router="device"))
    folder = served.folder / "router"
    result = served.run(
        "router", "routed", "--output", str(folder), "--forward", "8080:g1:80", "--reach", "192.168.1.53"
    )
    assert result.exit_code == 0, result.output
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert modes == {"router": 0o700, "router.conf": 0o600, "router.ovpn": 0o600}
    assert f"ready: run 'sudo {folder}/router up'" in result.stderr
    assert "tcp 8080 10.0.0.1 80 g1" in (folder / "router.conf").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--output", "/nowhere/router"), "--output: expected a folder that you can write"),
        (("--output", ".", "--forward", "80:g9:80"), "got g9; guests with addresses: g1"),
        (("--output", ".", "--reach", "home"), "--reach: expected a network"),
        (("--output", "."), "create the cluster with --router device"),
    ],
)
def test_bad_input_creates_no_router(served: Served, arguments: tuple[str, ...], message: str) -> None:
    result = served.run("router", "demo", *arguments)
    assert (result.exit_code, message in result.stderr) == (2, True), result.output
    assert served.world.audit("vpn_profile_created") == []


@pytest.mark.parametrize(
    ("hostname", "device"),
    [("laptop.example.org", "laptop"), ("Eva's Laptop.local", "eva-s-laptop"), ("42", "device-42"), ("ř", "device")],
)
def test_the_host_name_is_the_name_of_the_device(hostname: str, device: str) -> None:
    assert derive_device_name(hostname) == device


@needs_openvpn
def test_a_stock_client_reaches_the_server_of_a_gateway(served: Served) -> None:
    """The TLS handshake uses SBF's certificates and tls-crypt-v2 keys. ``--dev null`` creates no network interface."""
    port = free_port()
    served.world.put_topology(
        topology_with_gateways(
            brno=(gateway("brno-gw", vpn=listen_on(port)), gateway("brno-gw2")), praha=(gateway("praha-gw"),)
        )
    )
    file = served.folder / "my.ovpn"
    assert served.run("profile", "demo", "--device", "laptop", "--output", str(file)).exit_code == 0
    server = served.world.wanted_of_host("brno-gw").vpn
    assert server is not None
    with running(served.folder, "server", *server_options(served.folder, server, port)) as log:
        with running(served.folder, "client", "--config", str(file), "--dev", "null") as client_log:
            await_text(client_log, "[brno-gw] Peer Connection Initiated")
        await_text(log, f"CN={grants_of(served.world, 'brno-gw')[0].profile}")


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listen_on(port: int) -> dict[str, object]:
    return {"address": "127.0.0.1", "udp_port": port, "tcp_port": None}


def server_options(folder: Path, server: VpnServer, port: int) -> list[str]:
    texts = {
        "ca": server.authority,
        "cert": server.certificate,
        "key": server.private_key.get_secret_value(),
        "tls-crypt-v2": server.tls_crypt_key.get_secret_value(),
    }
    options = ["--tls-server", "--dh", "none", "--dev", "null", "--local", "127.0.0.1", "--port", str(port)]
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)
        options += [f"--{name}", str(folder / name)]
    return [*options, "--remote-cert-tls", "client"]


@contextmanager
def running(folder: Path, name: str, *options: str) -> Iterator[Path]:
    log = folder / f"{name}.log"
    with log.open("w") as output:
        process = subprocess.Popen(  # noqa: S603 - the program and the options of this test
            [str(OPENVPN), *options, "--verb", "3"], stdout=output, stderr=output
        )
    try:
        yield log
    finally:
        process.terminate()
        process.wait(10)


def await_text(log: Path, text: str) -> None:
    deadline = time.monotonic() + 20
    while text not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


def test_the_use_of_destinations_is_listed(served: Served) -> None:
    result = served.run("outside", "demo")
    assert (result.exit_code, result.output) == (0, "no gateway reported a destination\n")
