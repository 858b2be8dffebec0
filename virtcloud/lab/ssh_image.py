"""The lab's image ``busybox-ssh``: a busybox container with OpenSSH, in which the lab's users have accounts.

Its programs are this machine's own, copied with the libraries they need. Whoever has the lab's user key may log in as
any of the lab's users, and as root.
"""

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from virtcloud.lab import names
from virtcloud.lab.images import install_busybox, write_program

PROGRAMS = tuple(Path(one) for one in ("/usr/sbin/sshd", "/usr/bin/ssh", "/usr/bin/scp", "/usr/bin/ssh-keygen"))
LIBRARY = re.compile(r"(/\S+) \(0x")
HOMES = "/tmp/home"  # noqa: S108 - a folder inside the guest, which has no other that can be written to

INIT = f"""#!/bin/sh
# Addresses are set from outside. Ends at once when told to. A host key of its own at each start.
trap 'exit 0' TERM INT PWR
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
hostname "$VIRTCLOUD_GUEST"
mkdir -p /run/sshd {HOMES}/root
for user in {" ".join(names.USERS)}; do mkdir {HOMES}/$user; chown $user {HOMES}/$user; done
ssh-keygen -q -t ed25519 -N '' -f /run/sshd.key
/usr/sbin/sshd -D -e -r &
echo "$(hostname): up"
while :; do sleep 3600 & wait $!; done
"""

SSHD = """\
HostKey /run/sshd.key
AuthorizedKeysFile /etc/ssh/authorized_keys
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
    """Build the image ``busybox-ssh`` (kind lxc) in ``folder``."""
    root = folder / "busybox-ssh" / "rootfs"
    for name in ("bin", "sbin", "proc", "sys", "dev", "tmp", "run", "etc/ssh", "home", "root"):
        (root / name).mkdir(parents=True)
    install_busybox(root)
    for file in {*PROGRAMS, *_libraries(PROGRAMS)}:
        copy = root / file.relative_to("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    write_program(root / "sbin/init", INIT)
    for name, text in _files(authorized_key).items():
        (root / "etc" / name).write_text(text)
    (folder / "busybox-ssh/image.yaml").write_text("kind: lxc\nrootfs: rootfs\ninit: /sbin/init\n")


def _files(authorized_key: str) -> dict[str, str]:
    people = {"root": 0, "sshd": 101, **names.USERS}
    return {
        "passwd": "".join(f"{name}:*:{uid}:{uid}::{HOMES}/{name}:/bin/sh\n" for name, uid in people.items()),
        "group": "".join(f"{name}:x:{uid}:\n" for name, uid in people.items()),
        "ssh/sshd_config": SSHD,
        "ssh/ssh_config": "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n",
        "ssh/authorized_keys": authorized_key,
    }


def _libraries(programs: Iterable[Path]) -> set[Path]:
    """Give the libraries that programs are linked with, and the loader."""
    said = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True).stdout  # noqa: S603, S607
    return {Path(one) for one in LIBRARY.findall(said)}
