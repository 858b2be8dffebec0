import os
import subprocess
from pathlib import Path
from typing import Literal

import pytest
from pydantic import SecretStr

from virtcloud.client.credentials import token_source
from virtcloud.client.http_clients import TlsTrust
from virtcloud.client.sbf import SbfClient
from virtcloud.client.ssh_arguments import (
    ClusterLogins,
    SshOptions,
    build_ssh_arguments,
    choose_guest,
    proxy_arguments,
    write_known_hosts,
)
from virtcloud.model.errors import BadInput, NotFound
from virtcloud.model.guest_seed import ClusterPeers

ROOT = Path(__file__).parents[3]
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ"
FOUND = ClusterPeers.model_validate(
    {
        "key": "demo",
        "user": "eva",
        "peers": [
            {"name": "g1", "cluster": "demo", "addresses": ["10.0.0.1/24"], "host_key": KEY},
            {"name": "g2", "cluster": "demo", "addresses": ["10.0.0.2/24"]},
        ],
    }
)
PROXY = ("virtcloud", "--url", "http://sbf 100%", "guest", "connect", "demo", "g1")
NEVER_ASKED = SbfClient("http://127.0.0.1:1")


def arguments(guest: str = "g1", **changes: object) -> list[str]:
    options = SshOptions(**{"user": "eva", **changes})  # type: ignore[arg-type]
    return build_ssh_arguments(options, choose_guest(FOUND, ["g1"], guest), PROXY, Path("/known"))


def test_the_first_guest_is_the_default() -> None:
    assert choose_guest(FOUND, ["g2", "g1"], None).name == "g2"


def test_an_unknown_guest_is_answered_with_the_known_guests() -> None:
    with pytest.raises(NotFound, match="cluster demo has no guest hostname; its guests: g1, g2"):
        choose_guest(FOUND, ["g1"], "hostname")


def test_an_empty_name_is_no_guest() -> None:
    with pytest.raises(NotFound, match="cluster demo has no guest ''; its guests: g1, g2"):
        choose_guest(FOUND, [], "")


def test_the_proxy_command_survives_the_shell_and_ssh() -> None:
    assert "ProxyCommand=virtcloud --url 'http://sbf 100%%' guest connect demo g1 %p" in arguments()


def test_a_known_host_key_is_required() -> None:
    given = arguments()
    assert {"StrictHostKeyChecking=yes", 'UserKnownHostsFile="/known"', "HostKeyAlias=g1"} <= set(given)
    assert "StrictHostKeyChecking=yes" not in arguments("g2")


def test_ssh_connections_are_not_shared_between_clusters() -> None:
    assert "ControlPath=none" in arguments()


def test_options_of_the_user_come_first() -> None:
    given = arguments(options=("StrictHostKeyChecking=no",), identity="/key")
    assert given[:5] == ["ssh", "-i", "/key", "-o", "StrictHostKeyChecking=no"]
    assert given[-3:] == ["-l", "eva", "g1"]


def test_the_proxy_has_the_clients_address_and_token_file() -> None:
    sbf = SbfClient("https://sbf", token=token_source("https://sbf", file="/token"))
    words = proxy_arguments(sbf, FOUND.peers[0], Path("/never"))[1:]
    assert " ".join(words) == "-P -m virtcloud.cli --url https://sbf --token-file /token guest connect demo g1"


def test_the_proxy_has_the_clients_certificates(tmp_path: Path) -> None:
    sbf = SbfClient("http://sbf", trust=TlsTrust("/ca.pem", "/me.pem"))
    assert proxy_arguments(sbf, FOUND.peers[0], tmp_path)[6:10] == ["--ca-file", "/ca.pem", "--certificate", "/me.pem"]


def test_the_proxy_imports_no_module_from_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import pathlib; pathlib.Path('imported').touch()", encoding="utf-8")
    argv = [*proxy_arguments(NEVER_ASKED, FOUND.peers[0], tmp_path), "22"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=60)  # noqa: S603 - our own program
    assert "SBF does not answer at http://127.0.0.1:1" in ended.stderr
    assert not (tmp_path / "imported").exists()


def test_the_proxy_reads_the_token_from_a_private_file(tmp_path: Path) -> None:
    """The token must not be an argument, because every local user can read the arguments of a program."""
    sbf = SbfClient("http://sbf", token=token_source("http://sbf", SecretStr("vc_1")))
    words = proxy_arguments(sbf, FOUND.peers[0], tmp_path)
    assert not any("vc_1" in word for word in words)
    assert words[words.index("--token-file") + 1] == str(tmp_path / "token")
    assert ((tmp_path / "token").read_text(), (tmp_path / "token").stat().st_mode & 0o777) == ("vc_1", 0o600)


def test_host_keys_are_stored_for_this_cluster_only(tmp_path: Path) -> None:
    path = write_known_hosts(FOUND, "4c1f", tmp_path / "virtcloud")
    assert path == tmp_path / "virtcloud/known_hosts-4c1f"
    assert path.read_text() == f"g1,10.0.0.1 {KEY}\n"


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    config = tmp_path / "ssh_config"
    config.touch()
    for name, value in {"ID": "demo", "SSH_CONFIG": str(config), "GUESTS": "g1 g2"}.items():
        monkeypatch.setenv(f"VCLUSTER_{name}", value)
    return config


UNWRITABLE = Path("/proc/virtcloud")
"""A folder that even root cannot create."""


@pytest.mark.parametrize("through", ["sbf", "gateway", None])
def test_a_folder_that_cannot_be_written_names_its_variable(through: Literal["sbf", "gateway"] | None) -> None:
    logins = ClusterLogins(NEVER_ASKED, "demo", UNWRITABLE)
    with pytest.raises(BadInput, match=r"cannot be written: [^;]*; set TMPDIR to a folder that you can write"):
        logins.find(SshOptions(through=through), ["g1"])


@pytest.mark.usefixtures("job")
def test_a_jobs_script_needs_no_folder() -> None:
    assert ClusterLogins(NEVER_ASKED, "demo", UNWRITABLE).find(SshOptions(), ["g1"]).keys() == {"g1"}


def test_a_jobs_script_reaches_all_guests_without_sbf(job: Path, tmp_path: Path) -> None:
    found = ClusterLogins(NEVER_ASKED, "demo", tmp_path).find(SshOptions(identity="/key"), [])
    assert found == {name: ["ssh", "-i", "/key", "-F", str(job), name] for name in ("g1", "g2")}


def test_a_job_without_guests_is_refused(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VCLUSTER_GUESTS", "")
    with pytest.raises(BadInput, match="cluster demo has no guests"):
        ClusterLogins(NEVER_ASKED, "demo", tmp_path).find(SshOptions(), [])


def test_another_cluster_is_reached_through_sbf(job: Path, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="SBF does not answer"):
        ClusterLogins(NEVER_ASKED, "other", tmp_path).find(SshOptions(), [])
