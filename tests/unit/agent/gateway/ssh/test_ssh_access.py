import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pydantic import SecretBytes
from support.gateways.ssh_world import LISTENER, SshWorld, StockSsh, make_segment, opened
from support.processor_wait import Stopwatch

from virtcloud.agent.gateway import ssh_requests

PERMITS = ("permit-X11-forwarding", "permit-agent-forwarding", "permit-port-forwarding", "permit-pty", "permit-user-rc")
"""All SSH certificate extensions that permit an action. SBF's certificates contain none of them.

The sshd must refuse these actions even to a certificate with the extensions.
"""


def test_a_user_with_a_grant_reaches_the_guest(world: SshWorld) -> None:
    assert StockSsh(world).run(stdin="hello\n") == (0, "c1 10.0.0.1/24 22\nhello\n", "")


def test_a_user_without_a_grant_is_refused(world: SshWorld) -> None:
    code, output, error = StockSsh(world, "bob").run()
    assert (code, output) == (1, "")
    assert "bob may not reach the guests of this cluster" in error


def test_a_login_waits_for_a_late_grant(world: SshWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_requests, "GRANT_S", 20.0)
    world.grant()
    late = threading.Timer(1.0, world.grant, [make_segment("alice")])
    late.start()
    assert StockSsh(world).run()[1] == "c1 10.0.0.1/24 22\n"
    late.join()


def test_a_guest_of_another_cluster_is_refused(world: SshWorld) -> None:
    world.grant(make_segment("alice"), make_segment("bob", cluster="c2", guest="secret"))
    code, output, error = StockSsh(world).run("secret")
    assert (code, output) == (1, "")
    assert "expected the name of a guest with an address, got 'secret'; guests: g1" in error


def test_two_clusters_with_the_same_addresses_stay_apart(world: SshWorld) -> None:
    world.grant(make_segment("alice"), make_segment("alice", cluster="c2"))
    greetings = [StockSsh(world, cluster=cluster).run()[1] for cluster in ("c1", "c2")]
    assert greetings == ["c1 10.0.0.1/24 22\n", "c2 10.0.0.1/24 22\n"]


@pytest.mark.parametrize("command", ["", "sh", "g1; id", "$(id)", "g1\nid", "10.0.0.1"], ids=repr)
def test_only_guest_names_are_accepted_as_commands(world: SshWorld, command: str) -> None:
    code, output, error = StockSsh(world, permits=PERMITS).run(command, stdin="id\n")
    assert (code, output) == (1, "")
    assert "uid=" not in error


@pytest.mark.parametrize("option", ["-L", "-D"], ids=["local", "dynamic"])
def test_the_gateway_forwards_no_port(
    world: SshWorld, in_gateway: Callable[[Callable[[], bytes]], bytes], option: str
) -> None:
    target = "" if option == "-D" else f":127.0.0.1:{LISTENER.port}"
    request = b"\5\1\0" + b"\5\1\0\1\x7f\0\0\1" + LISTENER.port.to_bytes(2) if option == "-D" else b""

    def use_tunnel() -> bytes:
        tunnel = socket.socket()
        with opened(StockSsh(world, permits=PERMITS), option, f"127.0.0.1:9999{target}"), tunnel, suppress(OSError):
            tunnel.settimeout(5)
            tunnel.connect(("127.0.0.1", 9999))
            tunnel.sendall(request)
            return b"".join(iter(lambda: tunnel.recv(100), b""))
        return b""

    assert b"SSH-" not in in_gateway(use_tunnel)


def test_remote_port_forwarding_is_refused(world: SshWorld) -> None:
    code, _, error = StockSsh(world, permits=PERMITS).run(
        "g1", "-o", "ExitOnForwardFailure=yes", "-R", "9999:127.0.0.1:22"
    )
    assert (code, "remote port forwarding failed" in error) == (255, True)


def test_a_connection_through_the_gateway_to_elsewhere_is_refused(world: SshWorld) -> None:
    code, output, error = StockSsh(world, permits=PERMITS).run("", "-W", f"{LISTENER.address}:{LISTENER.port}")
    assert (code, output) == (255, "")
    assert "open failed: administratively prohibited" in error


def test_no_terminal_is_granted(world: SshWorld) -> None:
    assert "PTY allocation request failed" in StockSsh(world, permits=PERMITS).run("g1", "-tt", "-v")[2]


def test_an_sftp_server_is_not_offered(world: SshWorld) -> None:
    assert StockSsh(world, permits=PERMITS).run("sftp", "-s")[1] == ""


def test_a_certificate_of_another_authority_is_refused(world: SshWorld) -> None:
    code, _, error = StockSsh(world, secret=SecretBytes(b"x" * 32)).run()
    assert (code, "Permission denied (publickey)" in error) == (255, True)


def test_an_expired_certificate_is_refused(world: SshWorld) -> None:
    code, _, error = StockSsh(world, valid=timedelta(seconds=-1)).run()
    assert (code, "Permission denied (publickey)" in error) == (255, True)


def test_a_key_without_a_certificate_is_refused(world: SshWorld) -> None:
    client = StockSsh(world)
    (client.folder / "key-cert.pub").unlink()
    code, _, error = client.run()
    assert (code, "Permission denied (publickey)" in error) == (255, True)


def test_a_withdrawn_grant_ends_the_open_connection(world: SshWorld) -> None:
    world.grant(make_segment("alice", "bob"))
    with opened(StockSsh(world)) as alice, opened(StockSsh(world, "bob")) as bob:
        world.grant(make_segment("bob"))
        assert alice.wait() == 255
        assert bob.echo("still here") == "still here"


def test_a_revoked_certificate_ends_its_connections_within_a_second(world: SshWorld) -> None:
    client = StockSsh(world)
    with opened(client) as revoked, opened(StockSsh(world)) as other:
        stopwatch = Stopwatch(world.pid(), revoked.process.pid)
        world.grant(make_segment("alice", revoked=[client.serial]))
        assert (revoked.wait(), stopwatch.seconds < 1) == (255, True)
        assert other.echo("still here") == "still here"


def test_a_revoked_certificate_is_refused(world: SshWorld) -> None:
    client = StockSsh(world)
    world.grant(make_segment("alice", revoked=[client.serial]))
    code, output, error = client.run()
    assert (code, output, "the certificate was revoked: request a new one" in error) == (1, "", True)
    assert StockSsh(world).run()[1] == "c1 10.0.0.1/24 22\n"


def test_the_next_agent_ends_connections_of_revoked_certificates(world: SshWorld) -> None:
    client = StockSsh(world)
    with opened(client) as revoked:
        world.restart_agent(make_segment("alice", revoked=[client.serial]))
        assert revoked.wait() == 255


def test_an_open_connection_is_reported_with_its_certificate(world: SshWorld) -> None:
    client = StockSsh(world)
    with opened(client):
        (found,) = world.gateway.connections or ()
        assert (found.serial, found.user, found.cluster, found.guest) == (client.serial, "alice", "c1", "g1")
        assert found.remote.startswith("127.0.0.1 ")


def test_the_end_of_the_lease_ends_the_open_connection(world: SshWorld) -> None:
    with opened(StockSsh(world)) as client:
        ends = datetime.now(UTC) + timedelta(seconds=1)
        world.grant(make_segment("alice", ends=ends))
        client.wait()
        assert timedelta(0) <= datetime.now(UTC) - ends < timedelta(seconds=2)


def test_connections_survive_a_killed_agent(world: SshWorld) -> None:
    former = world.pid()
    with opened(StockSsh(world)) as client:
        world.restart_agent(make_segment("alice"))
        assert client.echo("hello") == "hello"
        assert (len(world.gateway.sessions.sessions), world.pid()) == (1, former)


def test_the_next_agent_ends_connections_without_a_grant(world: SshWorld) -> None:
    with opened(StockSsh(world)) as client:
        world.restart_agent(make_segment("bob"))
        assert client.wait() == 255


def test_no_file_of_the_gateway_has_the_private_host_key(world: SshWorld) -> None:
    secret = world.server.host_key.get_secret_value().encode()
    files = [path for path in (world.folder / "ssh").rglob("*") if path.is_file()]
    assert [path for path in files if secret in path.read_bytes()] == []


def test_the_sshd_has_no_privileges(world: SshWorld) -> None:
    lines = Path(f"/proc/{world.pid()}/status").read_text().splitlines()
    found = {line for line in lines if line.startswith(("CapEff", "CapBnd", "NoNewPrivs"))}
    assert found == {"CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"}
