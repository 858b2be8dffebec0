"""Creates a boot disk (qcow2) from a folder with a root file system. Needs neither mounts nor loop devices.

===========  =================================================================================================
sector       content
===========  =================================================================================================
0            GRUB's first stage (boot.img), and the partition table (MBR)
1 to 2047    GRUB's core image, which contains the modules that read the file system
from 2048    partition 1: ext4 with the label ``debian``
===========  =================================================================================================

boot.img loads sector 1, the first sector of the core image. The program in sector 1 loads the rest of the core image,
from sector 2 on. Both sector numbers are GRUB's defaults (grub-core/boot/i386/pc/boot.S and diskboot.S of GRUB 2.06).
"""

import os
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

SECTOR = 512
FIRST_SECTOR = 2048
BOOT_CODE_BYTES = 440
LABEL = "debian"
SIZE_MIB = 2048
GRUB_MODULES = ("biosdisk", "part_msdos", "ext2", "normal", "linux", "configfile", "serial", "terminal", "echo")
GRUB_FOLDER = "/boot/grub"
GRUB_CONFIG = f"""\
serial --unit=0 --speed=115200
terminal_input console serial
terminal_output console serial
set timeout=0
menuentry Debian {{
  linux /vmlinuz root=LABEL={LABEL} ro console=tty0 console=ttyS0,115200
  initrd /initrd.img
}}
"""
"""The configuration of GRUB.

This configuration names the links /vmlinuz and /initrd.img, which Debian's kernel packages maintain.
"""
FSTAB = f"LABEL={LABEL} / ext4 errors=remount-ro 0 1\n"
OLD_EXT4 = "^metadata_csum_seed,^orphan_file"
"""An option of mke2fs that disables the features of ext4 that GRUB 2.06 cannot read."""


def make_boot_disk(root: Path, target: Path, size_mib: int = SIZE_MIB, *, compressed: bool = False) -> None:
    """Write a disk to ``target``.

    The folder ``root`` contains the disk's root file system, with a kernel and GRUB's programs.

    Replace /etc/fstab in ``root``, and add GRUB's configuration if it is missing. Raise OSError or CalledProcessError
    if the disk cannot be created. Raise ValueError if GRUB's core image is too large.
    """
    (root / GRUB_FOLDER[1:]).mkdir(parents=True, exist_ok=True)
    config = root / GRUB_FOLDER[1:] / "grub.cfg"
    if not config.exists():
        config.write_text(GRUB_CONFIG)
    (root / "etc/fstab").write_text(FSTAB)
    raw = target.with_suffix(".raw")
    with raw.open("wb") as disk:
        disk.truncate(size_mib << 20)
        disk.write(_first_sectors(root, size_mib))
    _write_file_system(root, raw, size_mib)
    compression = ["-c", "-o", "compression_type=zstd"] if compressed else []
    run_program(["qemu-img", "convert", *compression, "-O", "qcow2", str(raw), str(target)])
    raw.unlink()


def run_program(argv: Sequence[str]) -> None:
    """Run a program. If the program fails, raise CalledProcessError with the program's error output."""
    subprocess.run(argv, capture_output=True, text=True, check=True)  # noqa: S603 - constant programs


def _first_sectors(root: Path, size_mib: int) -> bytes:
    core = f"{GRUB_FOLDER}/core.img"
    prefix = f"(hd0,msdos1){GRUB_FOLDER}"
    run_program(["chroot", str(root), "grub-mkimage", "-O", "i386-pc", "-o", core, "-p", prefix, *GRUB_MODULES])
    first_stage = (root / "usr/lib/grub/i386-pc/boot.img").read_bytes()
    return join_boot_sectors(first_stage, (root / core[1:]).read_bytes(), size_mib, os.urandom(4))


def join_boot_sectors(first_stage: bytes, core: bytes, size_mib: int, disk_id: bytes) -> bytes:
    """Return the content of the sectors before the partition. Raise ValueError if the core image is too large."""
    if len(core) > (FIRST_SECTOR - 1) * SECTOR:
        raise ValueError(f"GRUB's core image: expected at most {(FIRST_SECTOR - 1) * SECTOR} bytes, got {len(core)}")
    sectors = (size_mib << 20) // SECTOR - FIRST_SECTOR
    any_cylinder, active, linux = b"\xfe\xff\xff", 0x80, 0x83
    partition = struct.pack("<B3sB3sII", active, any_cylinder, linux, any_cylinder, FIRST_SECTOR, sectors)
    table = disk_id + bytes(2) + partition + bytes(3 * len(partition)) + b"\x55\xaa"
    return first_stage[:BOOT_CODE_BYTES] + table + core


def _write_file_system(root: Path, disk: Path, size_mib: int) -> None:
    offset = FIRST_SECTOR * SECTOR
    argv = ["mke2fs", "-q", "-F", "-t", "ext4", "-L", LABEL, "-O", OLD_EXT4, "-d", str(root)]
    run_program([*argv, "-E", f"offset={offset}", str(disk), f"{((size_mib << 20) - offset) // 1024}k"])
