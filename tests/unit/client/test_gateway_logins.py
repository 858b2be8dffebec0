import os
import platform
import socket
import subprocess
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from virtcloud.client import gateway_logins
from virtcloud.client.gateway_logins import (
    check_login_folder,
    compute_renewal,
    find_reachable_access,
    make_login_folder,
    make_login_key,
    make_proxy_arguments,
    render_login_config,
    render_login_hosts,
    request_login_files,
)
from virtcloud.client.guest_commands import find_batch_logins, make_command, run_commands
from virtcloud.client.guest_copies import put_files
from virtcloud.client.sbf import SbfClient
from virtcloud.client.ssh_arguments import ClusterLogins, GatewayLogins, SshOptions
from virtcloud.model.cluster import ClusterState
from virtcloud.model.errors import (
    BadInput,
    GuestsFailed,
    NoAddressFree,
    NotFound,
    ServiceStopping,
    ServiceUnreachable,
)
from virtcloud.model.guest_seed import ClusterPeers
from virtcloud.model.ssh_access import SshAccessView, SshCertificateRequest, SshCertificateView
from virtcloud.model.values import ClusterKey, Name
from virtcloud.model.views import ClusterView
from virtcloud.model.vpn import PendingElement

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ"
NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
CERTIFICATE = SshCertificateView.model_validate(
    {
        "cluster": "demo",
        "cluster_id": "c1",
        "gateways": [
            {"name": name, "address": f"{name}.example.org", "port": 2222, "host_key": KEY} for name in ("gw1", "gw2")
        ],
        "lease_ends": NOW,
        "user": "eva",
        "serial": 7,
        "certificate": "ssh-ed25519-cert-v01@openssh.com AAAA",
        "expires_at": NOW,
        "guest_user": "eva",
        "peers": [{"name": "g1", "cluster": "demo", "addresses": ["10.0.0.1/24"], "host_key": KEY}],
    }
)


PENDING = CERTIFICATE.model_copy(update={"pending": (PendingElement(element=Name("gw1"), reachable=True),)})


class FakeSbf(SbfClient):
    """An SBF that answers each request for a certificate with one prepared certificate.

    The calls of ``ssh_access`` raise ``errors`` first.
    """

    def __init__(
        self, access: SshAccessView | None = CERTIFICATE, certificate: SshCertificateView = CERTIFICATE
    ) -> None:
        super().__init__("http://127.0.0.1:1")
        self.access = access
        self.certificate = certificate
        self.certificates = 0
        self.errors: list[ServiceUnreachable] = []

    def ssh_access(self, key: str, cluster_id: str | None = None) -> SshAccessView:
        if self.errors:
            raise self.errors.pop()
        if self.access is None:
            raise NotFound(f"cluster {key} is not known")
        return self.access

    def create_ssh_certificate(
        self, key: str, request: SshCertificateRequest, cluster_id: str | None = None
    ) -> SshCertificateView:
        self.certificates += 1
        return self.certificate


class RefusingSbf(FakeSbf):
    """An SBF without the requested cluster."""

    def create_ssh_certificate(
        self, key: str, request: SshCertificateRequest, cluster_id: str | None = None
    ) -> SshCertificateView:
        raise NotFound(f"cluster {key} is not known")


def configured(folder: Path, host: str) -> set[str]:
    (folder / "config").write_text(render_login_config(CERTIFICATE, folder))
    done = subprocess.run(("ssh", "-G", "-F", f"{folder}/config", host), capture_output=True, text=True, check=True)  # noqa: S603, S607
    return set(done.stdout.splitlines())


def run_proxy(folder: Path, *codes: int) -> list[str]:
    """Run the proxy command with a fake ssh. Return the gateways that the proxy command tried.

    ``codes`` are the exit codes of the successive calls of the fake ssh.
    """
    ssh = folder / "ssh"
    ssh.write_text(
        f'#!/bin/sh\necho "$3" >>{folder}/tried\nset -- {" ".join(map(str, codes))}\n'
        f"shift $(($(wc -l <{folder}/tried) - 1))\nexit $1\n"
    )
    ssh.chmod(0o755)
    argv = make_proxy_arguments(CERTIFICATE.gateways, folder, "g1")
    subprocess.run((*argv, "22"), env={"PATH": f"{folder}:/usr/bin:/bin"}, check=False)  # noqa: S603
    return (folder / "tried").read_text().split()


def test_ssh_reaches_a_guest_by_the_gateways(tmp_path: Path) -> None:
    options = configured(tmp_path, "g1")
    assert {"user eva", "stricthostkeychecking true", f"userknownhostsfile {tmp_path}/known_hosts"} <= options
    (proxy,) = (option for option in options if option.startswith("proxycommand "))
    assert f"ssh -F {tmp_path}/config gw1.gateway" in proxy


def test_the_gateway_gets_the_certificate_and_no_other_key(tmp_path: Path) -> None:
    options = configured(tmp_path, "gw2.gateway")
    assert {"hostname gw2.example.org", "port 2222", "user virtcloud", "identitiesonly yes"} <= options
    assert {f"certificatefile {tmp_path}/key-cert.pub", f"identityfile {tmp_path}/key"} <= options
    assert "identityagent none" in options


def test_the_host_keys_of_gateways_and_guests_are_known() -> None:
    lines = render_login_hosts(CERTIFICATE).splitlines()
    assert lines == [f"gw1.gateway {KEY}", f"gw2.gateway {KEY}", f"g1,10.0.0.1 {KEY}"]


def test_the_second_gateway_is_tried_if_the_first_is_silent(tmp_path: Path) -> None:
    assert run_proxy(tmp_path, 255, 0) == ["gw1.gateway", "gw2.gateway"]


def test_a_refusal_is_not_repeated_at_the_second_gateway(tmp_path: Path) -> None:
    assert run_proxy(tmp_path, 1, 0) == ["gw1.gateway"]


def test_the_files_of_a_login_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "login"
    request_login_files(FakeSbf(), "demo", folder)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir())}
    assert modes.pop("login") == 0o700
    assert modes == dict.fromkeys(("key", "key-cert.pub", "known_hosts", "config"), 0o600)


def test_no_certificate_is_requested_if_the_folder_cannot_be_created(tmp_path: Path) -> None:
    sbf = FakeSbf()
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match=f"folder {tmp_path}/file/login: cannot be written: Not a directory; choose"):
        request_login_files(sbf, "demo", tmp_path / "file/login")
    assert sbf.certificates == 0


def test_a_folder_with_a_too_long_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be written: File name too long; choose another folder"):
        request_login_files(FakeSbf(), "demo", tmp_path / ("x" * 300))


def test_no_certificate_is_requested_if_the_folder_cannot_be_written() -> None:
    sbf = FakeSbf()
    with pytest.raises(BadInput, match=r"folder /proc: cannot be written: [^;]*; choose another folder"):
        request_login_files(sbf, "demo", Path("/proc"))
    assert sbf.certificates == 0


def test_each_login_has_a_new_key() -> None:
    assert make_login_key().public != make_login_key().public


@pytest.mark.parametrize("name", ["it's", 'a"b', "100%"])
def test_a_folder_that_ssh_cannot_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match="expected a folder without quotation marks"):
        check_login_folder(tmp_path / name)


def test_folders_of_ended_logins_are_removed(tmp_path: Path) -> None:
    for pid in (1 << 23, 1 << 80):  # higher than all process IDs
        (tmp_path / f"gateway-{platform.node()}-{pid}").mkdir()
    assert make_login_folder(tmp_path).name == f"gateway-{platform.node()}-{os.getpid()}"
    assert list(tmp_path.iterdir()) == []


def test_folders_of_another_computers_logins_remain(tmp_path: Path) -> None:
    """Computers can share a home folder."""
    names = {"gateway-other-4194305", f"gateway-{platform.node()}-4194305-7", f"gateway-{platform.node()}-²"}
    for name in names:
        (tmp_path / name).mkdir()
    make_login_folder(tmp_path)
    assert {folder.name for folder in tmp_path.iterdir()} == names


def test_a_restart_of_sbf_ends_no_wait_for_elements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    sbf, shown = FakeSbf(certificate=PENDING), list[SshAccessView]()
    sbf.errors = [ServiceStopping("this SBF stops; nothing was changed", 1)]
    assert request_login_files(sbf, "demo", tmp_path / "login", show=shown.append) is PENDING
    assert (shown, sbf.errors) == ([PENDING], [])


def test_the_end_of_a_wait_names_the_pending_elements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("virtcloud.client.waiting.PATIENCE_S", -1.0)
    sbf = FakeSbf(certificate=PENDING)
    sbf.errors = [ServiceStopping("this SBF stops", 1)]
    with pytest.raises(ServiceUnreachable, match=r"is valid, but gw1 had not confirmed .*\(this SBF stops\)"):
        request_login_files(sbf, "demo", tmp_path / "login")
    assert (tmp_path / "login/key-cert.pub").exists()


def test_a_gateway_that_is_out_of_reach_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_logins, "is_reachable", lambda _: False)
    assert not find_reachable_access(FakeSbf(), "demo", "c1")


@pytest.mark.parametrize(("banner", "is_sshd"), [(b"SSH-2.0-OpenSSH_9.2p1\r\n", True), (b"HTTP", False), (b"", False)])
def test_only_a_gateway_with_an_sshd_is_reachable(
    monkeypatch: pytest.MonkeyPatch, banner: bytes, *, is_sshd: bool
) -> None:
    """Some proxies accept every connection, but forward no data."""
    monkeypatch.setattr(gateway_logins, "BANNER_S", 20.0 if is_sshd else 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as thread:
        gateway = CERTIFICATE.gateways[0].model_copy(
            update={"address": "127.0.0.1", "port": listening.getsockname()[1]}
        )
        reachable = thread.submit(gateway_logins.is_reachable, gateway)
        connection, _ = listening.accept()
        with connection:
            connection.sendall(banner)
            assert reachable.result() == is_sshd


def test_a_refusal_leaves_no_new_folder(tmp_path: Path) -> None:
    (former := tmp_path / "former").mkdir()
    sbf = RefusingSbf()
    for folder in (former, tmp_path / "new"):
        with pytest.raises(NotFound):
            request_login_files(sbf, "demo", folder)
    assert list(tmp_path.iterdir()) == [former]


def test_an_older_sbf_offers_no_gateway() -> None:
    assert not find_reachable_access(FakeSbf(None), "demo", "c1")


def test_commands_on_many_guests_use_the_chosen_gateway(tmp_path: Path) -> None:
    logins = ClusterLogins(FakeSbf(), "demo", tmp_path)
    found = find_batch_logins(logins, SshOptions(through="gateway"), [])
    assert any("gw1.gateway g1" in word for word in found["g1"])


def test_logins_through_a_gateway_need_only_the_certificate(tmp_path: Path) -> None:
    """A user with whom the owner shares the guests may request a certificate, but may not read the cluster."""
    found = ClusterLogins(FakeSbf(), "demo", tmp_path).find(SshOptions(through="gateway"), [None])
    (proxy,) = (word for word in found["g1"] if word.startswith("ProxyCommand="))
    assert "gw1.gateway g1" in proxy


class FullSbf(FakeSbf):
    """An SBF with a cluster of one guest. The subnet of the cluster has no free address for a gateway."""

    def create_ssh_certificate(
        self, key: str, request: SshCertificateRequest, cluster_id: str | None = None
    ) -> SshCertificateView:
        raise NoAddressFree("subnet 10.0.0.0/30: expected a free address for gateway gw1, found none")

    def cluster(
        self,
        key: str,
        after: int | None = None,
        wait: float = 0,
        cluster_id: str | None = None,
        until: Collection[ClusterState] = (),
    ) -> ClusterView:
        document = {
            "key": key,
            "id": "c1",
            "attempt": 1,
            "version": 1,
            "state": "active",
            "vlans": {},
            "lease_ends": NOW,
        }
        guest = {"name": "g1", "host": "brno-h1", "image": "debian"}
        return ClusterView.model_validate(document | {"spec": {"owner": "eva", "guests": [guest]}})

    def peers(self, key: str, cluster_id: str | None = None) -> ClusterPeers:
        return ClusterPeers(key=ClusterKey(key), peers=CERTIFICATE.peers)


def test_logins_use_sbf_if_no_address_is_free_for_gateways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_logins, "is_reachable", lambda _gateway: True)
    logins = ClusterLogins(FullSbf(), "demo", tmp_path)
    (proxy,) = (word for word in logins.find(SshOptions(), [None])["g1"] if word.startswith("ProxyCommand="))
    assert "guest connect demo g1" in proxy
    with pytest.raises(NoAddressFree):
        logins.find(SshOptions(through="gateway"), [None])


class ShortSbf(FakeSbf):
    """An SBF whose certificates last one second. It issues at most ``limit`` certificates."""

    limit = 2

    def create_ssh_certificate(
        self, key: str, request: SshCertificateRequest, cluster_id: str | None = None
    ) -> SshCertificateView:
        if self.certificates == self.limit:
            raise ServiceUnreachable("SBF does not answer")
        view = super().create_ssh_certificate(key, request, cluster_id)
        peers = tuple(view.peers[0].model_copy(update={"name": name}) for name in ("g1", "g2"))
        return view.model_copy(update={"expires_at": datetime.now(UTC) + timedelta(seconds=1), "peers": peers})


@pytest.fixture
def slow_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ssh that writes its arguments to the returned file, runs the command on this computer, and then waits for 2 s.

    A certificate can be renewed immediately after the last request for a certificate.
    """
    (ssh := tmp_path / "ssh").write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$*" >>{tmp_path}/logins\n'
        'for last; do :; done\neval "(${last#exec })"\ncode=$?; sleep 2; exit $code\n'
    )
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(gateway_logins, "RENEWAL_PAUSE_S", 0.0)
    return tmp_path / "logins"


def test_a_login_after_the_certificates_end_gets_a_new_certificate(tmp_path: Path, slow_ssh: Path) -> None:
    sbf = ShortSbf()
    logins = find_batch_logins(ClusterLogins(sbf, "demo", tmp_path), SshOptions(through="gateway"), [])
    results = run_commands(logins, make_command("echo in"), jobs=1)
    assert [(name, result.stdout) for name, result in results.items()] == [("g1", "in\n"), ("g2", "in\n")]
    first, second = slow_ssh.read_text().splitlines()
    assert sbf.certificates == 2
    assert "/renewal-1/config gw1.gateway g2" in second
    assert "renewal" not in first


def test_a_refused_renewal_fails_one_command_only(tmp_path: Path, slow_ssh: Path) -> None:
    sbf = ShortSbf()
    sbf.limit = 1
    logins = find_batch_logins(ClusterLogins(sbf, "demo", tmp_path), SshOptions(through="gateway"), [])
    results = run_commands(logins, make_command("true"), jobs=1)
    assert [result.error for result in results.values()] == [None, "SBF does not answer"]


def test_a_refused_renewal_fails_one_copy_only(tmp_path: Path, slow_ssh: Path) -> None:
    sbf = ShortSbf()
    sbf.limit = 1
    (source := tmp_path / "source").touch()
    logins = find_batch_logins(ClusterLogins(sbf, "demo", tmp_path), SshOptions(through="gateway"), [])
    with pytest.raises(GuestsFailed) as caught:
        put_files(logins, {"source": source}, str(tmp_path / "copy"), jobs=1)
    assert caught.value.failures == {"g2": "SBF does not answer"}
    assert (tmp_path / "copy").exists()


def test_a_certificate_is_renewed_a_minute_before_its_end() -> None:
    assert compute_renewal(NOW, NOW + timedelta(minutes=10)) == NOW + timedelta(minutes=9)
    assert compute_renewal(NOW, NOW + timedelta(minutes=1)) == NOW + timedelta(seconds=30)


def test_a_fast_clock_does_not_cause_a_renewal_per_login() -> None:
    fast = NOW + timedelta(minutes=20)
    assert compute_renewal(fast, NOW + timedelta(minutes=10)) == fast + timedelta(seconds=10)


def test_logins_use_a_valid_certificate_whose_renewal_fails(tmp_path: Path) -> None:
    """A failed request is repeated after ten seconds, so that a batch of logins does not wait for each request."""
    now, requests, end = [NOW], list[datetime](), NOW + timedelta(minutes=10)

    def request(_folder: Path) -> SshCertificateView:
        requests.append(now[0])
        if len(requests) > 1:
            raise ServiceUnreachable("SBF does not answer")
        return CERTIFICATE.model_copy(update={"expires_at": end})

    logins = GatewayLogins(request, tmp_path, SshOptions(), [], lambda: now[0])
    for left_s in (60, 59, 50, 41, 5):
        now[0] = end - timedelta(seconds=left_s)
        assert any(f"{tmp_path}/config" in word for word in logins["g1"])
    assert [(end - request).total_seconds() for request in requests] == [600, 60, 50, 5]
    now[0] = end
    with pytest.raises(ServiceUnreachable, match="SBF does not answer"):
        logins["g1"]
