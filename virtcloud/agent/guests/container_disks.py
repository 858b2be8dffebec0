"""Extra disks of containers: ext4 file systems in files, which the host mounts.

In the container, the disk NAME is ``/mnt/NAME``.

=======================  ================================================================================
in the guest's folder    content
=======================  ================================================================================
``disk-NAME.ext4``       the file system: a sparse file, which uses space only for data that the guest wrote
``disks/NAME``           the mounted file system; its root folder belongs to the guest's root user
=======================  ================================================================================

A guest accesses only the mounted file system, not the file. If the guest could write to the file, the guest could
attack the host's kernel with a malformed file system. The disks are kept when the guest or the host restarts, and
removed with the guest's folder.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from virtcloud.agent.files import refuse_os_errors
from virtcloud.agent.guests import mounts
from virtcloud.model.guest_spec import GuestDisk
from virtcloud.model.wanted import GuestWanted

DISKS: Final = "disks"
MIB: Final = 1 << 20
ROOT_MODE: Final = 0o755


def disk_file(name: str) -> str:
    """Return the name of the file of a container's extra disk."""
    return f"disk-{name}.ext4"


def ensure_container_disks(folder: Path, guest: GuestWanted, id_shift: int) -> None:
    """Create and mount a stopped container's extra disks. Remove disks that are not in the guest's spec. Idempotent.

    A disk of another size is replaced by an empty disk. ``id_shift`` is the user and group ID that the guest's root
    user has on the host. Raise Refused if a disk cannot be created or mounted.
    """
    with refuse_os_errors(f"create the disks of guest {guest.name} in {folder}"):
        mounts.unmount_below(folder / DISKS)
        sizes = {disk_file(disk.name): disk.size_mb * MIB for disk in guest.disks or ()}
        for path in folder.glob(disk_file("*")):
            if path.stat().st_size != sizes.get(path.name):
                path.unlink()
        for disk in guest.disks or ():
            _mount_disk(folder, disk, id_shift)


def _mount_disk(folder: Path, disk: GuestDisk, id_shift: int) -> None:
    file, target = folder / disk_file(disk.name), folder / DISKS / disk.name
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not file.exists():
        incomplete = folder / f".{file.name}.new"  # the agent may be killed before the file is complete
        mounts.create_file_system(incomplete, disk.size_mb)
        incomplete.rename(file)
    mounts.mount_file_system(file, target)
    if target.stat().st_uid == 0:  # a new file system. Later, the guest may choose another owner and mode.
        with suppress(FileNotFoundError):  # the agent was killed after it removed lost+found
            (target / "lost+found").rmdir()  # used by fsck, which only the host's root could run
        os.chown(target, id_shift, id_shift)
        target.chmod(ROOT_MODE)
