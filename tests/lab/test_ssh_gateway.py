"""A laptop reaches guests of a real lab through the gateway with plain ssh, but is in none of the guests' networks.

Two clusters have identical addresses. The laptop does not reach SBF. Therefore a fixture requests the login files (ssh
configuration, key and certificate) outside the laptop and copies them to the laptop.
"""

import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import SecretStr
from support.lab.clusters import create, remove
from support.lab.vpn import GATEWAY, GUEST, HOST

from virtcloud.client.gateway_logins import make_login_key, request_login_files
from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab
from virtcloud.lab.addressing import LAPTOP
from virtcloud.model.access import Role
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.guest_spec import Guest

pytestmark = pytest.mark.lab

OWN_KEY = make_login_key()
OPTIONS = ("-o", "IdentitiesOnly=yes", "-o", "ConnectionAttempts=1")


@pytest.fixture(scope="module")
def client(lab: Lab) -> Iterator[SbfClient]:
    url = f"unix://{lab.sbf_socket}"
    with SbfClient(url) as operator:
        token = SecretStr(operator.create_token("alice", Role.USER).token)
    with SbfClient(url, timeout=60, token=lambda: token) as client:
        yield client


@pytest.fixture(scope="module")
def logins(lab: Lab, client: SbfClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """The folders with the login files, by cluster. The laptop has copies at the same paths."""
    keys = ("ssh-a", "ssh-b")
    guest = Guest(name="g1", host=HOST, image="busybox-ssh", memory_mb=64, addresses=(f"{GUEST}/24",))
    for key in keys:
        create(client, key, ClusterSpec(owner="alice", guests=(guest,), authorized_keys=(OWN_KEY.public,)))
    folder = tmp_path_factory.mktemp("ssh")
    found = {key: folder / key for key in keys}
    for key, login in found.items():
        request_login_files(client, key, login)
        (login / "own").write_text(OWN_KEY.private.get_secret_value())
        for path in login.iterdir():
            copy = ("sh", "-c", 'umask 077; mkdir -p "${0%/*}"; cat >"$0"', str(path))
            lab.run(LAPTOP, copy, stdin=path.read_text(), check=True)
    yield found
    remove(client, *keys)


def ssh(lab: Lab, login: Path, *command: str, program: str = "ssh") -> subprocess.CompletedProcess[str]:
    """Run ssh on the laptop. Repeat until the guest's sshd has started."""
    deadline = time.monotonic() + 60
    while True:
        argv = (program, "-F", f"{login}/config", "-i", f"{login}/own", *OPTIONS, *command)
        done = lab.run(LAPTOP, argv, timeout_s=120)
        if "cannot be reached" not in done.stderr or time.monotonic() > deadline:
            return done
        time.sleep(1)


def test_ssh_reaches_the_right_one_of_identical_clusters(lab: Lab, logins: dict[str, Path]) -> None:
    for key, login in logins.items():
        assert ssh(lab, login, "g1", f"echo {key} >name").returncode == 0
    found = {key: ssh(lab, login, "g1", "cat name").stdout.strip() for key, login in logins.items()}
    assert found == {"ssh-a": "ssh-a", "ssh-b": "ssh-b"}


def test_a_certificate_leads_only_to_guests_of_its_cluster(lab: Lab, logins: dict[str, Path]) -> None:
    mixed = logins["ssh-a"].with_name("mixed")
    script = 'cp -r "$0" "$2" && cp "$1/key" "$1/key-cert.pub" "$2" && sed -i "s#$0#$2#g" "$2/config"'
    lab.run(LAPTOP, ("sh", "-c", script, str(logins["ssh-a"]), str(logins["ssh-b"]), str(mixed)), check=True)
    done = ssh(lab, mixed, "g1", "cat name")
    assert (done.returncode, done.stdout) == (255, "")
    assert "Host key verification failed" in done.stderr  # the gateway forwarded the connection to the guest of ssh-b


def test_files_are_copied_with_scp(lab: Lab, logins: dict[str, Path]) -> None:
    login = logins["ssh-a"]
    assert ssh(lab, login, f"{login}/config", "g1:copied", program="scp").returncode == 0
    assert ssh(lab, login, "g1", "cat copied").stdout == (login / "config").read_text()


def test_the_gateway_runs_no_command_for_an_ssh_user(lab: Lab, logins: dict[str, Path]) -> None:
    login = logins["ssh-a"]
    done = lab.run(LAPTOP, ("ssh", "-F", f"{login}/config", f"{GATEWAY}.gateway", "id"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "expected the name of a guest with an address, got 'id'; guests: g1" in done.stderr


def test_a_revoked_certificate_ends_the_open_connection(lab: Lab, client: SbfClient, logins: dict[str, Path]) -> None:
    login = logins["ssh-a"]
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(ssh, lab, login, "g1", "sleep 600")
        while not (found := client.ssh_connections("ssh-a")):
            assert not running.done(), running.result()
            time.sleep(0.2)
        client.revoke_ssh_certificate("ssh-a", found[0].serial)
        assert running.result(timeout=10).returncode == 255
    assert "the certificate was revoked: request a new one" in ssh(lab, login, "g1", "true").stderr


def test_a_connection_survives_agent_restarts_but_not_the_clusters_end(
    lab: Lab, client: SbfClient, logins: dict[str, Path]
) -> None:
    login = logins["ssh-b"]
    with ThreadPoolExecutor(1) as pool:
        script = "touch begun; sleep 600"
        running: Future[subprocess.CompletedProcess[str]] = pool.submit(ssh, lab, login, "g1", script)
        while ssh(lab, login, "g1", "test -e begun").returncode:
            assert not running.done(), running.result()
        lab.service(GATEWAY, "agent").kill()
        lab.service(GATEWAY, "agent").start()
        assert not running.done(), running.result()
        client.delete_cluster("ssh-b")
        assert running.result(timeout=30).returncode == 255
