"""Machines for Ansible's playbooks: containers of Debian with systemd as process 1, on a network of their own.

Each machine is a systemd-nspawn container on an overlay of one image. The image contains the Debian packages that the
roles install, because the machines have no connection to the Internet.

The machines run Debian 12. To use another Debian, set ``VIRTCLOUD_TEST_DEBIAN`` to its name, such as trixie, and set
``VIRTCLOUD_TEST_WHEELS`` to an archive that ``make wheels`` wrote on that Debian.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
PLAYBOOK = str(ROOT / ".venv/bin/ansible-playbook")
PACKAGES = (
    *("systemd-sysv", "dbus", "udev", "openssh-server", "sudo", "kmod"),
    *("python3", "python3-venv", "python3-apt", "ca-certificates", "openssl"),
    *("libvirt-daemon-system", "libvirt-clients", "libvirt-daemon-driver-lxc", "nftables", "libnftables1", "iproute2"),
    *("dnsmasq-base", "libarchive-tools", "zstd", "openvpn"),
    *("postgresql", "haproxy", "socat", "prometheus", "curl"),
)
DISABLED = ("haproxy", "prometheus", "libvirtd", "libvirtd.socket", "libvirtd-ro.socket", "libvirtd-admin.socket")
"""Services that the image disables. The roles start the services that a machine needs."""
SUITE = os.environ.get("VIRTCLOUD_TEST_DEBIAN", "bookworm")
SHORT = 12
IMAGE = Path(
    "/var/cache/virtcloud/lab",
    f"ansible-machine-{sha256(repr((PACKAGES, DISABLED, SUITE)).encode()).hexdigest()[:SHORT]}",
)
SSH_OPTIONS = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
START_S = 180.0
NO_CONNECTION = 255
"""The exit code of ssh if it cannot connect."""
NETWORK = """[Match]
Name=host0
[Network]
Address={address}/24
LinkLocalAddressing=no
"""


class NoMachinesError(Exception):
    """No machine can start here. The message contains the reason."""


@dataclass
class Site:
    """The machines and their inventory. Ansible runs on the computer of the tests, not on these machines."""

    folder: Path
    namespace: Path
    addresses: Mapping[str, str]
    inventory: dict[str, Any] = field(default_factory=dict)

    def run(self, machine: str, command: str) -> subprocess.CompletedProcess[str]:
        """Run a shell command on a machine, as root."""
        words = (
            "ssh",
            "-i",
            str(self.folder / "key"),
            *SSH_OPTIONS.split(),
            f"root@{self.addresses[machine]}",
            command,
        )
        return self._enter(words)

    def read(self, machine: str, command: str) -> str:
        """Return the output of a shell command on a machine. Raise AssertionError if the command fails."""
        done = self.run(machine, command)
        assert done.returncode == 0, f"{machine}: {command}: {done.stdout}{done.stderr}"
        return done.stdout

    def ssh_variables(self) -> dict[str, Any]:
        return {
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(self.folder / "key"),
            "ansible_ssh_common_args": SSH_OPTIONS,
        }

    def play(self, playbook: str, *options: str) -> subprocess.CompletedProcess[str]:
        return self._enter((*self._playbook(playbook), *options))

    def kill_at(self, playbook: str, task: str) -> None:
        """Run a playbook, and kill Ansible when ``task`` begins. Raise AssertionError if ``task`` never begins."""
        done = self.play_with(playbook, {task: [lambda process: os.killpg(process.pid, signal.SIGKILL)]})
        assert done.returncode == -signal.SIGKILL, f"no task {task}: {done.stdout[-4000:]}"

    def play_with(
        self, playbook: str, faults: Mapping[str, Sequence[Callable[[subprocess.Popen[str]], object]]]
    ) -> subprocess.CompletedProcess[str]:
        """Run a playbook. When a task of ``faults`` begins for the n-th time, call the task's n-th function."""
        command = (*self._enter_network, *self._playbook(playbook))
        pending, lines = {task: list(functions) for task, functions in faults.items()}, []
        with subprocess.Popen(  # noqa: S603
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._environment,
            start_new_session=True,
        ) as process:
            assert process.stdout
            for line in process.stdout:
                lines.append(line)
                for task, functions in pending.items():
                    if f"[{task}]" in line and functions:
                        functions.pop(0)(process)
        assert not any(pending.values()), f"no task {pending}: {''.join(lines)[-4000:]}"
        return subprocess.CompletedProcess(command, process.returncode, "".join(lines), "")

    def _playbook(self, playbook: str) -> tuple[str, ...]:
        file = self.folder / "inventory.yml"
        file.write_text(yaml.safe_dump(self.inventory))
        return (PLAYBOOK, "-i", str(file), str(ROOT / "ansible" / playbook))

    @property
    def _enter_network(self) -> tuple[str, ...]:
        return ("nsenter", f"--net={self.namespace}")

    def _enter(self, words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        command = (*self._enter_network, *words)
        return subprocess.run(command, capture_output=True, text=True, env=self._environment, check=False)  # noqa: S603

    @property
    def _environment(self) -> dict[str, str]:
        """Return Ansible's environment, with a separate folder for the sockets of ssh connections.

        Other objects of this class use the same addresses, so a shared folder would mix their connections.
        """
        return {**ansible_environment(), "ANSIBLE_SSH_CONTROL_PATH_DIR": str(self.folder / "ssh")}


def ansible_environment() -> dict[str, str]:
    return {
        **os.environ,
        "LC_ALL": "C.UTF-8",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_CONFIG": str(ROOT / "ansible/ansible.cfg"),
    }


def count_changes(play: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """Return, for each machine, the number of tasks that changed it. Raise AssertionError if the playbook failed."""
    assert play.returncode == 0, play.stdout[-4000:] + play.stderr
    recap = play.stdout.partition("PLAY RECAP")[2].splitlines()[1:]
    rows = [line.split() for line in recap if "changed=" in line]
    return {row[0]: int(next(word for word in row if word.startswith("changed=")).partition("=")[2]) for row in rows}


def make_newer_archive(archive: Path, folder: Path) -> Path:
    """Write a copy of an archive to ``folder``, with one more file. The playbooks treat the copy as another version."""
    newer = folder / f"newer-{archive.name}"
    newer.write_bytes(archive.read_bytes())
    note = folder / "note"
    note.write_text("another version\n")
    with tarfile.open(newer, "a") as tar:
        tar.add(note, "note")
    return newer


@contextmanager
def running_machines(folder: Path, addresses: Mapping[str, str]) -> Iterator[Site]:
    """Start a machine at each address, and stop all machines at the end.

    Raise NoMachinesError if a machine cannot start.
    """
    check_requirements()
    _build_image()
    _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key"))
    name = f"ansible{os.getpid()}"
    with ExitStack() as stack:
        _run("ip", "netns", "add", name)
        stack.callback(_run, "ip", "netns", "delete", name)
        namespace = Path("/run/netns", name)
        enter = ("nsenter", f"--net={namespace}")
        for words in ("link set lo up", "link add br0 type bridge", "addr add 10.99.0.1/24 dev br0", "link set br0 up"):
            _run(*enter, "ip", *words.split())
        site = Site(folder, namespace, addresses)
        containers = {machine: stack.enter_context(_running_machine(site, machine)) for machine in addresses}
        for machine, container in containers.items():
            _await_ssh(site, machine, container)
        yield site


def check_requirements() -> None:
    """Raise NoMachinesError unless the tests run as root, and the programs for the machines are installed."""
    if os.geteuid() != 0:
        raise NoMachinesError(
            "machines for Ansible: expected root, for systemd-nspawn; found another user: run as root"
        )
    if missing := [
        name for name in ("systemd-nspawn", "mmdebstrap", "ssh-keygen", "nsenter") if not shutil.which(name)
    ]:
        raise NoMachinesError(f"machines for Ansible: {', '.join(missing)} missing: run make setup")


@contextmanager
def _running_machine(site: Site, machine: str) -> Iterator[subprocess.Popen[bytes]]:
    folder = site.folder / machine
    root = folder / "root"
    for part in ("upper", "work", "root"):
        (folder / part).mkdir(parents=True)
    layers = f"lowerdir={IMAGE},upperdir={folder / 'upper'},workdir={folder / 'work'}"
    _run("mount", "-t", "overlay", "overlay", "-o", layers, str(root))
    try:
        _configure(site, machine, root)
        with (folder / "console").open("wb") as console:
            container = subprocess.Popen(  # noqa: S603
                (
                    *("nsenter", f"--net={site.namespace}", "systemd-nspawn", "-q", "--register=no", "--keep-unit"),
                    *("--network-bridge=br0", "--capability=all", f"--machine={machine}", "-D", str(root), "--boot"),
                ),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
            )
        try:
            yield container
        finally:
            container.send_signal(signal.SIGTERM)  # makes systemd-nspawn shut the machine down
            try:
                container.wait(30)
            except subprocess.TimeoutExpired:
                container.kill()
                container.wait()
    finally:
        _run("umount", str(root))
        shutil.rmtree(folder)


def _configure(site: Site, machine: str, root: Path) -> None:
    (root / "etc/hostname").write_text(f"{machine}\n")
    hosts = {"localhost": "127.0.0.1", **site.addresses}
    (root / "etc/hosts").write_text("".join(f"{address} {name}\n" for name, address in hosts.items()))
    (root / "etc/systemd/network/10-host0.network").write_text(NETWORK.format(address=site.addresses[machine]))
    networkd = root / "etc/systemd/system/multi-user.target.wants/systemd-networkd.service"
    networkd.symlink_to("/lib/systemd/system/systemd-networkd.service")
    (root / "root/.ssh").mkdir(mode=0o700, exist_ok=True)
    shutil.copy(site.folder / "key.pub", root / "root/.ssh/authorized_keys")
    _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(root / "etc/ssh/ssh_host_ed25519_key"))


def _await_ssh(site: Site, machine: str, container: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_S
    while site.run(machine, "systemctl is-system-running --wait").returncode == NO_CONNECTION:
        if container.poll() is not None or time.monotonic() > end:
            console = (site.folder / machine / "console").read_text(errors="replace")[-2000:]
            raise NoMachinesError(
                f"machine {machine}: expected systemd to boot in systemd-nspawn within {START_S:.0f} s, "
                f"but it did not: this kernel or container forbids it. Use another machine. Console: {console}"
            )
        time.sleep(0.5)


def _build_image() -> None:
    """Build the image, unless the cache contains an image with the same packages, disabled services and Debian."""
    if IMAGE.exists():
        return
    IMAGE.parent.mkdir(parents=True, exist_ok=True)
    with IMAGE.with_name(f"{IMAGE.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not IMAGE.exists():
            _build_missing_image()


def _build_missing_image() -> None:
    new = IMAGE.with_name(f"{IMAGE.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    options = (
        *("--quiet", "--variant=minbase", f"--include={','.join(PACKAGES)}"),
        '--aptopt=APT::Install-Recommends "false"',
        f'--customize-hook=chroot "$1" systemctl --quiet disable {" ".join(DISABLED)}',
    )
    _run("mmdebstrap", *options, SUITE, str(new))
    for key in (new / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    new.rename(IMAGE)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"
