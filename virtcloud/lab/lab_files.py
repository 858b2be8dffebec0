"""The lab's SSH keys: the service's for switches and edges, each one's own, and the users' for their guests."""

import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from virtcloud.lab.errors import LabFailed


def make_keys(folder: Path, devices: Iterable[str]) -> tuple[str, Mapping[str, str]]:
    """Make all keys; gives the public key of the account, and the devices' private host keys by name."""
    _make_key(folder / "switch")
    _make_key(folder / "user")
    hosts = {name: _make_key(folder / f"host-{name}").read_text() for name in devices}
    return (folder / "switch.pub").read_text(), hosts


def known_hosts(folder: Path, addresses: Mapping[str, str]) -> str:
    """Give the devices' public host keys by address, as OpenSSH keeps them; ``addresses`` are by device."""
    return "".join(f"{address} {(folder / f'host-{name}.pub').read_text()}" for name, address in addresses.items())


def _make_key(path: Path) -> Path:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "virtcloud-lab", "-f", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - nothing comes from outside
    if done.returncode:
        raise LabFailed(f"ssh-keygen made no key {path}: {done.stderr.strip()}")
    return path
