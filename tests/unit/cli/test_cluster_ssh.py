from pathlib import Path

import pytest

from virtcloud.cli import ConnectionOptions
from virtcloud.cli.cluster_ssh import SshCall, build_ssh_arguments, choose_guest, proxy_arguments, write_known_hosts
from virtcloud.model.errors import NotFound
from virtcloud.model.known_hosts import ClusterPeers

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


def arguments(guest: str = "g1", **changes: object) -> list[str]:
    call = SshCall(**{"user": "eva", "options": (), "identity": None, "command": (), **changes})  # type: ignore[arg-type]
    return build_ssh_arguments(call, choose_guest(FOUND, ["g1"], guest), PROXY, Path("/known"))


def test_the_first_guest_is_the_default() -> None:
    assert choose_guest(FOUND, ["g2", "g1"], None).name == "g2"


def test_an_unknown_guest_is_answered_with_the_known_guests() -> None:
    with pytest.raises(NotFound, match="cluster demo has no guest hostname; its guests: g1, g2"):
        choose_guest(FOUND, ["g1"], "hostname")


def test_the_proxy_command_survives_the_shell_and_ssh() -> None:
    assert "ProxyCommand=virtcloud --url 'http://sbf 100%%' guest connect demo g1 %p" in arguments()


def test_a_known_host_key_is_required() -> None:
    given = arguments()
    assert {"StrictHostKeyChecking=yes", "UserKnownHostsFile=/known", "HostKeyAlias=g1"} <= set(given)
    assert "StrictHostKeyChecking=yes" not in arguments("g2")


def test_options_of_the_user_come_first() -> None:
    given = arguments(options=("StrictHostKeyChecking=no",), identity="/key", command=("echo", "$HOME"))
    assert given[:5] == ["ssh", "-i", "/key", "-o", "StrictHostKeyChecking=no"]
    assert given[-5:] == ["-l", "eva", "g1", "echo", "$HOME"]


def test_the_proxy_uses_the_same_connection() -> None:
    options = ConnectionOptions("https://sbf", Path("/token"), None, None)
    words = proxy_arguments(options, FOUND.peers[0])[1:]
    assert " ".join(words) == "-m virtcloud.cli --url https://sbf --token-file /token guest connect demo g1"


def test_host_keys_are_stored_for_this_cluster_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = write_known_hosts(FOUND, "4c1f")
    assert path == tmp_path / "virtcloud/known_hosts-4c1f"
    assert path.read_text() == f"g1,10.0.0.1 {KEY}\n"
