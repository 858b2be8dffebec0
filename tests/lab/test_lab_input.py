"""What cannot be is said at once, with exit code 2, and changes nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.lab

SWITCH = "switches: [{name: s, platform: linux_bridge, ports: [p1, p2]}]"


def virtcloud(state: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "VIRTCLOUD_LAB_STATE": str(state)}
    return subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-m", "virtcloud.cli", *argv], capture_output=True, text=True, check=False, env=environment
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: x\nsites: [\n", "not YAML"),
        ("name: x\nsites:\n  - name: a\n    hosst: []\n", "lab.yaml:4: sites.0.hosst: expected no such key"),
        ("name: x\nsites:\n  - {name: a, hosts: [{name: h, ports: [eth0]}]}\n", "h is on no switch"),
        (
            f"name: x\nsites:\n  - {{name: a, {SWITCH}}}\npools: {{b: '1'}}\n",
            "expected sites of this topology (a), got b",
        ),
        (f"name: x\nsites:\n  - {{name: a, {SWITCH}}}\npools: {{a: '5000'}}\n", "from 1 to 4094, got 5000"),
        (f"name: x\nsites:\n  - {{name: a, {SWITCH}}}\n".replace("p2", "br0"), "the lab uses br0 itself"),
        (f"name: x\nsites:\n  - {{name: a, {SWITCH}}}\n".replace("p2", "a-very-long-port"), "at most 15 characters"),
        (f"name: x\nsites:\n  - {{name: a, {SWITCH}}}\n".replace("name: s,", "name: user,"), "the lab has a node"),
    ],
)
def test_a_lab_file_that_cannot_be(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "lab.yaml").write_text(text)
    done = virtcloud(tmp_path / "state", "lab", "up", str(tmp_path / "lab.yaml"))
    assert done.returncode == 2
    assert words in done.stderr
    assert not (tmp_path / "state").exists()


def test_a_lab_file_that_is_not_there(tmp_path: Path) -> None:
    done = virtcloud(tmp_path / "state", "lab", "up", str(tmp_path / "nix.yaml"))
    assert (done.returncode, "expected a readable file" in done.stderr) == (2, True)


@pytest.mark.parametrize("argv", [["status"], ["exec", "brno-h1", "true"], ["shell", "brno-h1"]])
def test_no_lab_is_up(tmp_path: Path, argv: list[str]) -> None:
    done = virtcloud(tmp_path / "state", "lab", *argv)
    assert (done.returncode, "virtcloud lab up" in done.stderr) == (2, True)


def test_down_with_nothing_up_is_well(tmp_path: Path) -> None:
    done = virtcloud(tmp_path / "state", "lab", "down")
    assert (done.returncode, done.stdout) == (0, "no lab is up, and none has left anything\n")
