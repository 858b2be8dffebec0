"""Tests of commands on guests over real ssh connections, without SBF, as in a job's script."""

import getpass
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.programs.real_sshd import RealSshd, make_real_sshd

from virtcloud.cli import main
from virtcloud.client.guest_commands import GuestResult, make_command, run_collected
from virtcloud.client.sbf import SbfClient
from virtcloud.client.ssh_arguments import SshOptions, build_ssh_arguments, open_logins
from virtcloud.model.guest_seed import Peer, render_known_hosts

STOPPED = "sh -c 'echo virtcloud: guest off is stopped >&2'"
HUNG = "sleep 60"


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> RealSshd:
    return make_real_sshd(tmp_path_factory.mktemp("sshd"))


def run(job: dict[str, str], *arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner(env=job).invoke(main, ["cluster", "run", "demo", *arguments], input=stdin)


def run_in_python(monkeypatch: pytest.MonkeyPatch, job: dict[str, str], command: str) -> dict[str, GuestResult]:
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    with SbfClient("http://127.0.0.1:1") as sbf, open_logins(sbf, "demo") as logins:
        return run_collected(logins, SshOptions(), (), make_command(command))


def test_output_and_exit_codes_are_grouped_by_guest(sshd: RealSshd) -> None:
    done = run(sshd.job("g1", "g2", off=STOPPED), "--json", "--", "echo out; echo bad >&2; exit 3")
    found = json.loads(done.stdout)
    assert done.exit_code == 1
    assert [found[name].pop("seconds") > 0 for name in found] == [True, True, True]
    exited = {"returncode": 3, "stdout": "out\n", "stderr": "bad\n", "error": None}
    stopped = {"returncode": None, "stdout": "", "stderr": "", "error": "guest off is stopped"}
    assert found == {"g1": exited, "g2": exited, "off": stopped}
    assert done.stderr.splitlines() == [
        "virtcloud: the command failed on 3 of 3 guests:",
        "virtcloud: g1: exit code 3",
        "virtcloud: g2: exit code 3",
        "virtcloud: off: guest off is stopped",
    ]


def test_a_guest_that_hangs_delays_no_other(sshd: RealSshd) -> None:
    done = run(sshd.job("g1", hung=HUNG), "--timeout", "10s", "--", "echo quick")
    assert (done.exit_code, done.stdout) == (1, "g1: quick\n")
    assert "hung: no login within 10 s" in done.stderr


def test_standard_input_is_empty_unless_it_is_requested(sshd: RealSshd) -> None:
    job, data = sshd.job("g1"), b"\0\xff" * 200_000
    assert run(job, "--", "wc -c", stdin=data).stdout.split() == ["g1:", "0"]
    assert run(job, "--stdin", "--", "wc -c", stdin=data).stdout.split() == ["g1:", "400000"]


def test_every_byte_of_the_output_arrives(sshd: RealSshd, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_in_python(monkeypatch, sshd.job("g1"), r"printf '\377\0\r\n'; head -c 5000000 /dev/zero; exit 255")[
        "g1"
    ]
    assert result.stdout_bytes == b"\xff\0\r\n" + bytes(5_000_000)
    assert (result.returncode, result.stdout[:2]) == (255, "\ufffd\0")


def test_a_guest_that_boots_is_tried_again(sshd: RealSshd, tmp_path: Path) -> None:
    job = sshd.job("g1")
    config = Path(job["VCLUSTER_SSH_CONFIG"])
    login = next(line.split(None, 1)[1] for line in config.read_text().splitlines() if "ProxyCommand" in line)
    boots = f"[ -e {tmp_path}/up ] || {{ touch {tmp_path}/up; exit 1; }}\nexec {login}\n"
    (tmp_path / "boots").write_text(boots)
    config.write_text(config.read_text().replace(login, f"sh {tmp_path}/boots"))
    assert run(job, "--wait", "60s", "--", "echo ran").stdout == "g1: ran\n"
    (tmp_path / "up").unlink()
    assert run(job, "--", "echo ran").exit_code == 1


def test_a_refused_key_is_explained(sshd: RealSshd, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", locked], check=True)  # noqa: S603, S607
    job = sshd.job("g1")
    config = Path(job["VCLUSTER_SSH_CONFIG"])
    config.write_text(config.read_text().replace(f"{sshd.folder}/key", str(locked)))
    done = run(job, "--", "true")
    assert done.exit_code == 1
    assert "virtcloud: g1: " in done.stderr
    assert "ssh-add" in done.stderr


def test_another_host_key_is_refused_and_explained(sshd: RealSshd) -> None:
    job = sshd.job("g1")
    done = run(job, "-o", f"UserKnownHostsFile={sshd.folder}/none", "-o", "StrictHostKeyChecking=yes", "--", "true")
    assert done.exit_code == 1
    assert "Host key verification failed; the guest's host key differs from the host key that SBF knows" in done.stderr


def test_host_keys_are_found_in_a_folder_with_spaces(sshd: RealSshd, tmp_path: Path) -> None:
    host_key = (sshd.folder / "host_key.pub").read_text().strip()
    peer = Peer.model_validate({"name": "g1", "cluster": "demo", "host_key": host_key})
    known_hosts = tmp_path / "known  100% hosts"
    known_hosts.write_text(render_known_hosts([peer]))
    options = SshOptions(getpass.getuser(), sshd.folder / "key", ("BatchMode=yes", "IdentitiesOnly=yes"))
    login = build_ssh_arguments(options, peer, ["sh", "-c", sshd.make_proxy_command()], known_hosts)
    done = subprocess.run([*login, "echo in"], capture_output=True, check=False, timeout=60)  # noqa: S603 - ssh
    assert (done.stdout, done.stderr) == (b"in\n", b"")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -9)]
)
def test_commands_end_with_the_program(sshd: RealSshd, tmp_path: Path, number: int, code: int) -> None:
    """A signal ends ``virtcloud cluster run``, the command on the guests, and the command's child processes.

    A guest's sshd sends no signal to a command without a terminal. Private files of ``virtcloud cluster run`` remain
    only after SIGKILL.
    """
    pids, private = tmp_path / "pids", tmp_path / "tmp"
    private.mkdir()
    command = f"sleep 60 & echo $! >>{pids}; echo started; wait"
    with start_program(sshd.job("g1", "g2") | {"TMPDIR": str(private)}, command) as program:
        assert program.stdout is not None
        started = sorted(program.stdout.readline() for _ in range(2))
        program.send_signal(number)
        _, messages = program.communicate(timeout=20)
        assert (program.returncode, started) == (code, [b"g1: started\n", b"g2: started\n"])
        assert (b"interrupted; the command was ended on all guests" in messages) == (number is signal.SIGINT)
    assert bool(list(private.iterdir())) == (number is signal.SIGKILL)
    await_true(lambda: not [pid for pid in pids.read_text().split() if Path(f"/proc/{pid}").exists()])


def start_program(job: dict[str, str], command: str) -> "subprocess.Popen[bytes]":
    arguments = [sys.executable, "-m", "virtcloud.cli", "cluster", "run", "demo", "--", command]
    return subprocess.Popen(  # noqa: S603 - our own
        arguments, env=os.environ | job, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def await_true(reached: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.05)
