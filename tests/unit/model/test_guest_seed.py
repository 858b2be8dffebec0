import subprocess
from pathlib import Path

import pytest

from virtcloud.model.errors import BadInput
from virtcloud.model.guest_seed import WITH_SECRETS, GuestSeed, Peer, PublicKey, render_known_hosts

SEED = GuestSeed(user="alice", host_key="private host key", cluster_key="private cluster key")
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAbcdefghijklmnopqrstuvwxyz0123456789ABCDEFG alice@laptop"
HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICV4Rg1MXTHEvoTqFY3ldwZh9dYVIQFVY1pW0Sx6tWc3"
PEERS = (
    Peer.model_validate(
        {"name": "g1", "cluster": "a", "addresses": ["10.0.0.1/24", "fd00::1/64"], "host_key": HOST_KEY}
    ),
    Peer.model_validate({"name": "old", "cluster": "b", "addresses": ["10.0.0.2/24"]}),
)


def test_repr_and_json_of_a_seed_contain_no_secret() -> None:
    assert "private" not in SEED.model_dump_json()
    assert "private" not in repr(SEED)


def test_an_agent_receives_the_secrets() -> None:
    assert GuestSeed.model_validate_json(SEED.model_dump_json(context=WITH_SECRETS)) == SEED
    assert "private host key" in SEED.model_dump_json(context=WITH_SECRETS)


def test_a_public_key_is_accepted_as_ssh_keygen_writes_it() -> None:
    assert PublicKey(KEY) == KEY


@pytest.mark.parametrize(
    "text", [KEY.replace("ssh-ed25519", "ssh-dss"), KEY + "\nssh-rsa AAAA", "command=x " + KEY, ""]
)
def test_other_text_is_no_public_key(text: str) -> None:
    with pytest.raises(BadInput, match="a public SSH key"):
        PublicKey(text)


def test_guests_without_a_host_key_have_no_line() -> None:
    assert render_known_hosts(PEERS) == f"g1,10.0.0.1,fd00::1 {HOST_KEY}\n"


@pytest.mark.parametrize("name", ["g1", "10.0.0.1", "fd00::1"])
def test_openssh_finds_a_guest_by_name_and_address(tmp_path: Path, name: str) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(render_known_hosts(PEERS))
    found = subprocess.run(["ssh-keygen", "-F", name, "-f", file], check=True, capture_output=True, text=True)  # noqa: S603, S607 - our own
    assert HOST_KEY in found.stdout
