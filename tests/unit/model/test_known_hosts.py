"""Lines of known_hosts: ssh finds a guest's key by its name and by each of its addresses."""

import subprocess
from pathlib import Path

import pytest

from virtcloud.model.guest_seed import Peer
from virtcloud.model.known_hosts import render_known_hosts

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICV4Rg1MXTHEvoTqFY3ldwZh9dYVIQFVY1pW0Sx6tWc3"
PEERS = (
    Peer.model_validate({"name": "g1", "cluster": "a", "addresses": ["10.0.0.1/24", "fd00::1/64"], "host_key": KEY}),
    Peer.model_validate({"name": "old", "cluster": "b", "addresses": ["10.0.0.2/24"]}),
)


def test_guests_without_a_host_key_have_no_line() -> None:
    assert render_known_hosts(PEERS) == f"g1,10.0.0.1,fd00::1 {KEY}\n"


@pytest.mark.parametrize("name", ["g1", "10.0.0.1", "fd00::1"])
def test_openssh_finds_a_guest_by_name_and_address(tmp_path: Path, name: str) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(render_known_hosts(PEERS))
    found = subprocess.run(["ssh-keygen", "-F", name, "-f", file], check=True, capture_output=True, text=True)  # noqa: S603, S607 - our own
    assert KEY in found.stdout
