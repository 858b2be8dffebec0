"""The lab's guest images: busybox for containers and for QEMU guests, and busybox with OpenSSH for containers.

The programs of the image ``busybox-ssh`` are copied from this machine. In this image, the lab's user key permits logins
as root and as each of the lab's users.
"""

import gzip
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from virtcloud.lab import addressing
from virtcloud.lab.guest_kernel import GuestKernel
from virtcloud.lab.initial_file_systems import cpio_archive, store_modules, write_program

BUSYBOX = Path("/bin/busybox")
APPLETS = ("sh", "ip", "ping", "arping", "sleep", "cat", "ls", "nc", "wget", "httpd", "hostname", "mount", "kill", "ps")

DISK_LABEL, DISK_BYTES = b"a disk of the lab\n", 1 << 20

CONTAINER_INIT = """#!/bin/sh
# The agent sets the addresses. This program exits immediately on a signal.
trap 'exit 0' TERM INT PWR
hostname "$VIRTCLOUD_GUEST"
echo "$(hostname): up"
while :; do sleep 3600 & wait $!; done
"""

QEMU_INIT = """#!/bin/sh
# A guest's init: sets the addresses from the kernel's command line, then waits. Everybody on the guest's
# network gets a shell on port 23 (nc, no password): this image is for trials.
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for module in /modules/*.ko; do insmod "$module"; done
for word in $(cat /proc/cmdline); do
  case "$word" in
    virtcloud.guest=*) hostname "${word#*=}" ;;
    virtcloud.address=*) ip addr add "${word#*=}" dev eth0 ;;
  esac
done
ip link set lo up; ip link set eth0 up
echo "$(hostname): up"
while :; do nc -ll -p 23 -e /bin/sh; done
"""


def make_container_image(folder: Path) -> None:
    """Create the image ``busybox`` (kind lxc) in ``folder``/busybox."""
    root = folder / "busybox" / "rootfs"
    for name in ("bin", "sbin", "proc", "sys", "dev", "tmp", "run", "etc", "root"):
        (root / name).mkdir(parents=True, exist_ok=True)
    install_busybox(root)
    write_program(root / "sbin/init", CONTAINER_INIT)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (folder / "busybox/image.yaml").write_text("kind: lxc\nrootfs: rootfs\ninit: /sbin/init\n")


def make_debian_image(folder: Path, name: str, root: Path) -> None:
    """Create the image ``name`` (kind lxc) in ``folder``. The image refers to the root file system ``root``.

    All labs of this machine use the same root file system.
    """
    (folder / name).mkdir(exist_ok=True)
    (folder / name / "image.yaml").write_text(f"kind: lxc\nrootfs: {root}\ninit: /sbin/init\n")


def make_images_readable(folder: Path) -> None:
    """Make images readable by all users, independent of the umask: owners of guests need read permission."""
    for description in folder.glob("*/image.yaml"):
        description.chmod(0o644)
        description.parent.chmod(0o755)
    folder.chmod(0o755)


def install_busybox(root: Path) -> None:
    """Install busybox in ``root``/bin, and a symbolic link for each of its programs."""
    shutil.copy(BUSYBOX, root / "bin/busybox")
    applets = subprocess.run([BUSYBOX, "--list"], capture_output=True, text=True, check=True).stdout.split()  # noqa: S603
    for applet in {*APPLETS, *applets} - {"busybox", "init"}:
        (root / "bin" / applet).symlink_to("busybox")


def make_qemu_image(folder: Path, kernel: GuestKernel) -> None:
    """Create the image ``busybox-qemu`` (kind qemu) in ``folder``."""
    image = folder / "busybox-qemu"
    image.mkdir()
    shutil.copy(kernel.image, image / "vmlinuz")
    (image / "initrd").write_bytes(gzip.compress(cpio_archive(_qemu_tree(image, kernel.modules)), compresslevel=1))
    shutil.rmtree(image / "tree")
    (image / "image.yaml").write_text(
        "kind: qemu\nkernel: vmlinuz\ninitrd: initrd\ncmdline: console=ttyS0 quiet panic=-1\n"
    )


def make_disk_image(folder: Path) -> None:
    """Create the image ``busybox-disk`` (kind qemu) in ``folder``: ``busybox-qemu`` with a disk in raw format."""
    image = folder / "busybox-disk"
    image.mkdir()
    (image / "disk.img").write_bytes(DISK_LABEL + b"\0" * (DISK_BYTES - len(DISK_LABEL)))
    (image / "image.yaml").write_text(
        "kind: qemu\nkernel: ../busybox-qemu/vmlinuz\ninitrd: ../busybox-qemu/initrd\n"
        "cmdline: console=ttyS0 quiet panic=-1\ndisk: disk.img\ndisk_format: raw\n"
    )


def _qemu_tree(image: Path, modules: Sequence[Path]) -> Path:
    tree = image / "tree"
    for name in ("bin", "proc", "sys", "dev"):
        (tree / name).mkdir(parents=True)
    install_busybox(tree)
    write_program(tree / "init", QEMU_INIT)
    store_modules(tree, modules)
    return tree


SSH_PROGRAMS = tuple(
    Path(program) for program in ("/usr/sbin/sshd", "/usr/bin/ssh", "/usr/bin/scp", "/usr/bin/ssh-keygen")
)
LIBRARY = re.compile(r"(/\S+) \(0x")
HOMES = "/home"
HOST_KEY = "/etc/ssh/ssh_host_ed25519_key"
"""The path of a guest's host key. The seed contains this key. A guest without a seed creates a key at its start."""

SSH_INIT = f"""#!/bin/sh
# The agent sets the addresses and writes the seed. This program exits immediately on a signal.
trap 'exit 0' TERM INT PWR
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
hostname "$VIRTCLOUD_GUEST"
mkdir -p /run/sshd
for user in root {" ".join(addressing.USERS)}; do mkdir -p {HOMES}/$user; chown $user {HOMES}/$user; done
[ -e {HOST_KEY} ] || ssh-keygen -q -t ed25519 -N '' -f {HOST_KEY}
/usr/sbin/sshd -D -e -r &
echo "$(hostname): up"
while :; do sleep 3600 & wait $!; done
"""

SSHD = f"""\
HostKey {HOST_KEY}
AuthorizedKeysFile /etc/ssh/authorized_keys .ssh/authorized_keys
PidFile none
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
UsePAM no
UseDNS no
PrintMotd no
PrintLastLog no
Subsystem sftp internal-sftp
"""


def make_ssh_image(folder: Path, authorized_key: str) -> None:
    """Create the image ``busybox-ssh`` (kind lxc) in ``folder``."""
    root = folder / "busybox-ssh" / "rootfs"
    for name in ("bin", "sbin", "proc", "sys", "dev", "tmp", "run", "etc/ssh", "home", "root"):
        (root / name).mkdir(parents=True)
    install_busybox(root)
    for file in {*SSH_PROGRAMS, *_libraries(SSH_PROGRAMS)}:
        copy = root / file.relative_to("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    write_program(root / "sbin/init", SSH_INIT)
    for name, text in _files(authorized_key).items():
        (root / "etc" / name).write_text(text)
    (folder / "busybox-ssh/image.yaml").write_text("kind: lxc\nrootfs: rootfs\ninit: /sbin/init\n")


def _files(authorized_key: str) -> dict[str, str]:
    user_ids = {"root": 0, "sshd": 101, **addressing.USERS}
    return {
        "passwd": "".join(f"{name}:*:{uid}:{uid}::{HOMES}/{name}:/bin/sh\n" for name, uid in user_ids.items()),
        "group": "".join(f"{name}:x:{uid}:\n" for name, uid in user_ids.items()),
        "ssh/sshd_config": SSHD,
        "ssh/ssh_config": "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n",
        "ssh/authorized_keys": authorized_key,
    }


def _libraries(programs: Iterable[Path]) -> set[Path]:
    output = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True).stdout  # noqa: S603, S607
    return {Path(path) for path in LIBRARY.findall(output)}
