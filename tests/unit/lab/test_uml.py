"""Tests of the script that loads modules in User-mode Linux."""

import subprocess
from pathlib import Path

import pytest

from virtcloud.lab.fabric.uml import MODPROBE_TEXT

LOADED = "loaded"


@pytest.fixture
def modprobe(tmp_path: Path) -> Path:
    """The script, in which ``echo`` replaces the command that loads the module."""
    script = tmp_path / "modprobe"
    script.write_text(MODPROBE_TEXT.replace("exec /bin/busybox unshare", f"exec echo {LOADED}"))
    script.chmod(0o755)
    return script


def request(modprobe: Path, name: str) -> tuple[int, bool]:
    """Request a module as the kernel does. Return the exit code, and whether the script loads the module."""
    done = subprocess.run([modprobe, "-q", "--", name], capture_output=True, text=True, check=False)  # noqa: S603
    return done.returncode, LOADED in done.stdout


@pytest.mark.parametrize("name", ["netdev-vnet0", "netdev-vc125-23ed9ab9", "netdev-eth0"])
def test_the_name_of_a_missing_interface_loads_no_module(modprobe: Path, name: str) -> None:
    """The exit code is 0: after an error, the kernel would also request a module with the interface's name."""
    assert request(modprobe, name) == (0, False)


@pytest.mark.parametrize("name", ["netdev-tunl0", "netdev-gretap0", "netdev-ip6tnl0", "nft-expr-limit", "fs-overlay"])
def test_other_names_load_a_module(modprobe: Path, name: str) -> None:
    assert request(modprobe, name) == (0, True)
