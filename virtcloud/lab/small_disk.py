"""The lab's small boot disk for QEMU guests: an ordinary cloud image that boots in seconds without KVM.

===============  ===================================================================================
part             content
===============  ===================================================================================
boot             partition table, GRUB, Debian's cloud kernel, and a small initial file system (``INITIAL_PROGRAM``)
first program    busybox ``init``, which runs the script /etc/init.d/boot, and then sshd
cloud-init       Debian's package; reads seeds (data source NoCloud); stages ``local`` and ``init``, in one process
network          ifupdown and dhclient, as cloud-init configures them
===============  ===================================================================================

The image omits what is slow on an emulated processor: it has no systemd and no udev, and cloud-init runs only the
modules that a seed of virtcloud needs. The script /etc/init.d/boot writes the guest's uptime, in seconds, to the file
`BOOT_TIMES` twice: before cloud-init starts and after cloud-init ends.
"""

import gzip
import shutil
from pathlib import Path
from typing import IO, Final

from virtcloud.lab import boot_disk, debian_image, guest_kernel
from virtcloud.lab.debian_image import OPEN_FOLDER, DebianRecipe
from virtcloud.lab.fabric.events import Watcher
from virtcloud.lab.guest_kernel import GuestKernel
from virtcloud.lab.initial_file_systems import cpio_archive, store_modules, write_program

PACKAGES = (
    "usr-is-merged",
    "busybox",
    "openssh-server",
    "sudo",
    "cloud-init",
    "ifupdown",
    "iproute2",
    "netbase",
    "grub-pc-bin",
    "grub-common",
)
SIZE_MIB: Final = 512
BOOT_TIMES: Final = "/run/boot-times"

INITIAL_PROGRAM = """\
#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
for module in /modules/*.ko; do /bin/busybox insmod "$module"; done
/bin/busybox mount -t ext4 -o ro /dev/vda1 /root
exec /bin/busybox switch_root /root /usr/sbin/init
"""
"""The script /init of the initial file system, which the kernel runs first. The disk contains a copy, /boot/init.

busybox comes from the machine that builds the disk. The package busybox-static provides a busybox without libraries.
"""

CLOUD_INIT_STAGES = """\
import gc
import subprocess

gc.disable()
from cloudinit.cmd.main import main

main(["cloud-init", "init", "--local"])
subprocess.run(["ifup", "-a"])
main(["cloud-init", "init"])
"""
"""A Python program that runs cloud-init's two stages in one process.

With two processes, both would import the same modules, which takes a quarter of the boot's processor time.
"""

CUSTOMIZE = f"""\
set -eu
rm -f "$1"/etc/ssh/ssh_host_*_key* "$1/etc/hostname" "$1/etc/apt/apt.conf.d/99mmdebstrap"
: > "$1/etc/resolv.conf"
: > "$1/etc/machine-id"
printf '127.0.0.1 localhost\\n::1 localhost ip6-localhost ip6-loopback\\n' > "$1/etc/hosts"
ln -s /bin/busybox "$1/usr/sbin/init"
cat > "$1/etc/inittab" <<'END'
::sysinit:/etc/init.d/boot
::respawn:/usr/sbin/sshd -D
::shutdown:/bin/busybox umount -a -r
END
cat > "$1/etc/init.d/boot" <<'END'
#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
mkdir -p /dev/pts; mount -t devpts devpts /dev/pts; mount -t tmpfs -o mode=755 run /run
mount -o remount,rw /
mkdir -p /run/sshd /run/network
ip link set lo up
cut -d ' ' -f 1 /proc/uptime >{BOOT_TIMES}
python3 /etc/init.d/cloud-init-stages
cut -d ' ' -f 1 /proc/uptime >>{BOOT_TIMES}
echo "$(hostname): up"
END
chmod 755 "$1/etc/init.d/boot"
cat > "$1/etc/init.d/cloud-init-stages" <<'END'
{CLOUD_INIT_STAGES}END
cat > "$1/etc/cloud/cloud.cfg.d/90_small.cfg" <<'END'
locale: C.UTF-8
datasource_list: [NoCloud]
cloud_init_modules: [bootcmd, write-files, set_hostname, users-groups, ssh, write-files-deferred]
END
mkdir -p "$1/boot/grub"
cat > "$1/boot/init" <<'END'
{INITIAL_PROGRAM}END
cat > "$1/boot/grub/grub.cfg" <<'END'
set timeout=0
menuentry Debian {{
  linux /vmlinuz ro console=ttyS0 quiet panic=-1
  initrd /initrd.img
}}
END
"""
"""Shell commands that run after the installation of the packages.

The commands delete files that an image must not contain, such as host keys. The commands also write the scripts that
run during the boot (including ``INITIAL_PROGRAM``), and the configurations of busybox ``init``, cloud-init and GRUB.
"""

SMALL = DebianRecipe("debian-small", PACKAGES, CUSTOMIZE, OPEN_FOLDER)


def ensure_small_disk(watch: Watcher) -> Path:
    """Return the path of the small disk (qcow2, compressed). Build the disk if the cache does not contain the disk.

    Raise LabImpossible if the image cannot be built.
    """
    kernel = guest_kernel.fetch_guest_kernel(watch)
    folder = debian_image.ensure_built(SMALL, lambda new, lock: _build(new, lock, kernel), watch)
    return folder / "disk.qcow2"


def _build(folder: Path, lock: IO[str], kernel: GuestKernel) -> None:
    tree = folder / "tree"
    debian_image.install_packages(SMALL, tree, lock)
    shutil.copy(kernel.image, tree / "vmlinuz")
    (tree / "initrd.img").write_bytes(_initial_file_system(folder / "initial", tree / "boot/init", kernel))
    boot_disk.make_boot_disk(tree, folder / "disk.qcow2", SIZE_MIB, compressed=True)
    shutil.rmtree(tree)


def _initial_file_system(tree: Path, program: Path, kernel: GuestKernel) -> bytes:
    for name in ("bin", "dev", "root"):
        (tree / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", tree / "bin/busybox")
    write_program(tree / "init", program.read_text())
    store_modules(tree, kernel.modules)
    archive = gzip.compress(cpio_archive(tree), compresslevel=1)
    shutil.rmtree(tree)
    return archive
