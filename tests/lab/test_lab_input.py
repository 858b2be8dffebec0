"""Tests of lab commands that get invalid input, or that lack root's rights, a kernel or a program.

Such commands change nothing, and name the fault or the remedy.
"""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from virtcloud.cli import main
from virtcloud.lab import Lab, lab_kernel, prerequisites
from virtcloud.lab.state import LabState, find_remains

pytestmark = pytest.mark.lab

VALID_LAB = """\
name: x
transports: [{name: core, kind: qinq, s_tag: 2000}]
sites:
  - name: a
    attachments: [{transport: core, port: "s:p3"}]
    switches: [{name: s, platform: linux_bridge, ports: [p1, p2, p3]}]
    hosts:
      - {name: h, ports: [eth0]}
links:
  - {a: "h:eth0", b: "s:p1"}
pools: {a: "100-199"}
"""


def virtcloud(state: Path, *argv: str) -> Result:
    """Run a command in this process, which has imported the modules already."""
    return CliRunner(env={"VIRTCLOUD_LAB_STATE": str(state)}).invoke(main, argv)


def start_and_read_error(tmp_path: Path, text: str) -> str:
    (tmp_path / "lab.yaml").write_text(text)
    done = virtcloud(tmp_path / "state", "lab", "up", str(tmp_path / "lab.yaml"))
    assert (done.exit_code, done.stdout) == (2, "")
    assert find_remains(LabState(tmp_path / "state")) == []
    return done.stderr.replace(f"{tmp_path}/", "").strip()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("links:", "links: [", "lab.yaml:10: not YAML"),
        ("hosts:", "hosst:", "lab.yaml:7: sites.0.hosst: unknown key; check its spelling (similar: hosts)"),
        ("2000", "4095", "lab.yaml:2: transports.0.s_tag: expected a VLAN ID from 1 to 4094, got 4095"),
        ("2000", "0", "lab.yaml:2: transports.0.s_tag: expected a VLAN ID from 1 to 4094, got 0"),
        ("100-199", "100-5000", "lab.yaml:11: pools.a: expected a VLAN ID from 1 to 4094, got 5000"),
        ("pools: {a", "pools: {b", "lab.yaml:11: pools.b: pools: expected sites of this topology (a), got b"),
        ('  - {a: "h:eth0", b: "s:p1"}', "  []", "lab.yaml:8: sites.0.hosts.0: host h has no link to a switch"),
        ("s:p1", "s:p3", "lab.yaml:10: links.0.b: port s:p3: expected at most one link on a port, got two"),
        ("s:p1", "s:p9", "lab.yaml:10: links.0.b: port s:p9: expected a port of s (p1, p2, p3), got p9"),
        (
            "p2",
            "br0",
            "lab.yaml:6: sites.0.switches.0.ports.1: port s:br0: expected another name, because the lab uses the inter",
        ),
        ("p2", "GigabitEthernet1", "lab.yaml:6: sites.0.switches.0.ports.1: port s:GigabitEthernet1: expected a name"),
        ("name: a\n", "name: a-site-name-long\n", "lab.yaml:5: sites.0.attachments.0: site a-site-name-long: the lab"),
        (
            "h, ports",
            "laptop, ports",
            "lab.yaml:8: sites.0.hosts.0.name: laptop: expected another name, because the lab uses this name",
        ),
        ("name: h,", f"name: {'h' * 33},", "lab.yaml:8: sites.0.hosts.0.name: expected a name: lower case"),
    ],
)
def test_a_malformed_lab_file_is_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    text = VALID_LAB.replace(old, new, 1)
    if old == "h, ports":
        text = text.replace("h:eth0", "laptop:eth0")
    if old == "name: a\n":
        text = text.replace('{a: "100', '{a-site-name-long: "100')
    assert text != VALID_LAB
    assert start_and_read_error(tmp_path, text).startswith(f"virtcloud: {words}")


def test_two_sites_with_the_same_core_port_are_refused(tmp_path: Path) -> None:
    def site(number: int) -> str:
        name = f"long-site-nr{number}"
        circuits = ", ".join(f'{{transport: core, port: "s{number}:p{port}"}}' for port in (1, 2))
        ports = f"switches: [{{name: s{number}, platform: linux_bridge, ports: [p1, p2]}}]"
        return f"  - name: {name}\n    attachments: [{circuits}]\n    {ports}\n"

    text = f"name: x\ntransports: [{{name: core, kind: qinq, s_tag: 2000}}]\nsites:\n{site(1)}{site(2)}"
    reason = "because transport core already has a port"
    message = f"lab.yaml:8: sites.1.attachments.1: site long-site-nr2: expected another name, {reason}"
    assert start_and_read_error(tmp_path, text).startswith(f"virtcloud: {message}")


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_an_unreadable_lab_file_is_refused(tmp_path: Path, content: bytes | None) -> None:
    if content:
        (tmp_path / "nix.yaml").write_bytes(content)
    done = virtcloud(tmp_path / "state", "lab", "up", str(tmp_path / "nix.yaml"))
    assert (done.exit_code, "nix.yaml: expected a readable file, got: " in done.stderr) == (2, True)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("argv", [["status"], ["exec", "brno-h1", "true"], ["shell", "brno-h1"]])
def test_commands_without_a_lab_are_refused(tmp_path: Path, argv: list[str]) -> None:
    done = virtcloud(tmp_path / "state", "lab", *argv)
    assert (done.exit_code, "virtcloud lab up" in done.stderr) == (2, True)


def test_lab_down_without_a_lab_succeeds(tmp_path: Path) -> None:
    done = virtcloud(tmp_path / "state", "lab", "down")
    assert (done.exit_code, done.stdout) == (0, "no lab is up, and no remains of a lab were found\n")


@pytest.mark.parametrize("command", ["up", "demo"])
def test_a_caller_other_than_root_is_refused(tmp_path: Path, command: str) -> None:
    """The command runs in a separate user namespace, where it appears as ``nobody`` but can read root's files."""
    argv = ["unshare", "--user", sys.executable, "-m", "virtcloud.cli", "lab", command]
    environment = {**os.environ, "VIRTCLOUD_LAB_STATE": str(tmp_path / "state")}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)  # noqa: S603 - our own command
    assert (done.returncode, "run the command with sudo" in done.stderr) == (2, True)
    assert not (tmp_path / "state").exists()


def run_without_change(tmp_path: Path, *argv: str) -> tuple[int, str]:
    done = virtcloud(tmp_path / "state", "lab", *argv)
    assert not (tmp_path / "state").exists()
    return done.exit_code, done.output


def test_a_machine_without_a_suitable_kernel_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_kernel, "has_feature", lambda feature: feature.name != "802.1ad bridges")
    monkeypatch.setattr(lab_kernel, "find_uml_kernel", lambda: None)
    code, message = run_without_change(tmp_path, "up")
    assert (code, message) == (
        2,
        (
            "virtcloud: no lab can run here: this machine's kernel lacks: 802.1ad bridges; "
            "User-mode Linux is missing: apt-get install user-mode-linux\n"
        ),
    )


def test_missing_programs_are_named_with_their_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = prerequisites.REQUIRED_PROGRAMS, prerequisites.VPN_PROGRAMS, prerequisites.NFS_PROGRAMS
    for program in itertools.chain(*needed):
        if program not in {"tcpdump", "bridge", "tc"}:
            (tmp_path / program).touch(mode=0o755)
    monkeypatch.setattr(prerequisites, "PROGRAM_PATH", str(tmp_path))
    code, message = run_without_change(tmp_path, "up")
    assert (code, message) == (
        2,
        "virtcloud: this machine lacks bridge, tc, tcpdump: apt-get install iproute2 tcpdump\n",
    )


def test_missing_python_packages_are_named_with_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prerequisites, "PYTHON_PACKAGES", {"libvirt": "agent", "no_such_package": "sbf"})
    code, message = run_without_change(tmp_path, "up")
    remedy = "pip install 'virtcloud[lab]'; or, in a clone of virtcloud: make setup"
    assert (code, message) == (2, f"virtcloud: this Python lacks no_such_package: {remedy}\n")


def test_a_missing_hypervisor_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prerequisites, "has_driver", lambda kind: kind == "lxc")
    code, message = run_without_change(tmp_path, "up", str(Path(__file__).parent / "topologies/mixed.yaml"))
    assert (code, "libvirt's qemu driver: apt-get install libvirt-daemon-driver-qemu" in message) == (2, True)


def test_a_second_start_does_not_change_a_running_lab(bare: Lab) -> None:
    first = bare.state.pid()
    done = virtcloud(bare.state.folder, "lab", "up")
    assert (done.exit_code, "lab metacenter is up already" in done.stderr) == (2, True)
    assert (bare.state.pid(), bare.all_services_run()) == (first, True)


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (
            ("exec", "ostrava-h1", "true"),
            2,
            "virtcloud: the lab has no node ostrava-h1; its nodes are: station, brno-sw1,",
        ),
        (("shell", "ostrava-h1"), 2, "virtcloud: the lab has no node ostrava-h1; its nodes are: station, brno-sw1,"),
        (("service", "ostrava-h1", "sshd", "kill"), 2, "virtcloud: the lab has no node ostrava-h1; its nodes are: "),
        (
            ("service", "brno-h1", "sshd", "kill"),
            2,
            "virtcloud: node brno-h1 has no service sshd; its services are: libv",
        ),
        (
            ("service", "laptop", "sshd", "kill"),
            2,
            "virtcloud: node laptop has no service sshd; its services are: none",
        ),
        (("exec", "brno-h1", "no-such-program", "-x"), 127, "brno-h1: no-such-program: not found\n"),
        (("exec", "brno-h1", "--", "no-such-program", "-x"), 127, "brno-h1: no-such-program: not found\n"),
        (("exec", "station", "no-such-program"), 127, "station: no-such-program: not found\n"),
        (("exec", "brno-h1", "/etc/hosts"), 126, "brno-h1: /etc/hosts: Permission denied\n"),
    ],
)
def test_unknown_nodes_services_and_programs_are_named(bare: Lab, argv: tuple[str, ...], code: int, words: str) -> None:
    """A program that is not found gives exit code 127, and a program that cannot be executed 126, as in a shell."""
    done = virtcloud(bare.state.folder, "lab", *argv)
    assert (done.exit_code, done.stdout) == (code, "")
    assert done.stderr.startswith(words)
    assert bare.all_services_run()
