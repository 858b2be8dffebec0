"""The lab's Debian images: root file systems for containers and a boot disk for QEMU, from Debian's packages.

The lab stores each image once, in a folder of the lab's cache. The name of an image's folder contains a digest of the
image's recipe. The images contain systemd and sshd, but no host key, host name or user.

The lab's image ``debian`` lacks cloud-init, which starts Python four times when a guest boots (15 s in User-mode
Linux).
"""

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from virtcloud.lab import apt_sources, boot_disk
from virtcloud.lab.errors import LabImpossible
from virtcloud.lab.fabric.events import LabEvent, Watcher
from virtcloud.lab.node_services import CACHE
from virtcloud.model.errors import BadInput

PACKAGES = (
    "usr-is-merged",  # otherwise APT installs usrmerge, which needs all of Perl
    "systemd-sysv",
    "dbus",
    "udev",
    "openssh-server",
    "sudo",
    "iproute2",
    "iputils-ping",
    "netbase",
    "openmpi-bin",
    "python3-mpi4py",
)
BOOT_PACKAGES = (
    "linux-image-cloud-amd64",
    "initramfs-tools",
    "zstd",  # compresses the initial file system
    "grub-pc-bin",
    "grub-common",
    "cloud-guest-utils",  # cloud-init grows the partition to the size of the guest's disk
    "systemd-resolved",
)
OMITTED = tuple(
    f"/usr/share/{folder}/*"
    for folder in (
        "doc",
        "man",
        "info",
        "locale",
        "i18n",
        "lintian",
        "bash-completion",
        "X11/locale",
        "zoneinfo/right",
        "zoneinfo/posix",
    )
)
"""Patterns of paths. mmdebstrap does not install files whose path matches a pattern.

Without idmapped mounts, the agent changes the owner of each file at a guest's first start. Fewer files shorten this
start.
"""

CUSTOMIZE = """\
set -eu
rm -f "$1"/etc/ssh/ssh_host_*_key* "$1/etc/hostname" "$1/etc/apt/apt.conf.d/99mmdebstrap"
[ -L "$1/etc/resolv.conf" ] || : > "$1/etc/resolv.conf"
: > "$1/etc/machine-id"
printf '127.0.0.1 localhost\\n::1 localhost ip6-localhost ip6-loopback\\n' > "$1/etc/hosts"
chroot "$1" systemctl --quiet disable e2scrub_reap.service e2scrub_all.timer
"""
"""Shell commands that run after the installation. They delete data that an image must not contain.

Examples are host keys, which the package openssh-server created, and this machine's host name and name servers, which
mmdebstrap copied to the image.
"""
CUSTOMIZE_CLOUD_INIT = """\
printf 'locale: C.UTF-8\\napt_preserve_sources_list: true\\n' > "$1/etc/cloud/cloud.cfg.d/10_image.cfg"
"""
"""Shell commands that configure cloud-init. C.UTF-8 is the only locale of the image."""
CUSTOMIZE_BOOT = 'chroot "$1" systemctl --quiet enable systemd-networkd systemd-resolved\n'

MERGED_USR = "/usr/share/mmdebstrap/hooks/merged-usr"
ARCHIVE = ("tar", "--numeric-owner", "--xattrs", "--xattrs-include=*")

BUILD_LOG = Path(CACHE, "debian-build.log")
LOCK = Path(CACHE, "debian-build.lock")
OPEN_FOLDER, CLOSED_FOLDER = 0o755, 0o700
END_S = 30.0


@dataclass(frozen=True, slots=True)
class DebianRecipe:
    """The packages of an image, the shell commands after their installation, and the mode of the image's folder.

    Only root may enter the folder of a root file system, which contains setuid programs.
    """

    name: str
    packages: tuple[str, ...]
    customize: str
    folder_mode: int

    def folder(self, release: str) -> Path:
        """Return the folder of the image in the cache."""
        digest = hashlib.sha256(repr((self, release, OMITTED, boot_disk.GRUB_CONFIG)).encode()).hexdigest()
        return Path(CACHE, f"{self.name}-{digest[:12]}")


LIGHT = DebianRecipe("debian-light", PACKAGES, CUSTOMIZE, CLOSED_FOLDER)
CLOUD = DebianRecipe("debian-cloud", (*PACKAGES, "cloud-init"), CUSTOMIZE + CUSTOMIZE_CLOUD_INIT, CLOSED_FOLDER)
DISK = DebianRecipe(
    "debian-disk",
    (*CLOUD.packages, *BOOT_PACKAGES),
    CUSTOMIZE + CUSTOMIZE_CLOUD_INIT + CUSTOMIZE_BOOT,
    OPEN_FOLDER,
)
LAB_IMAGES: Mapping[str, DebianRecipe] = {"debian": LIGHT, "debian-cloud": CLOUD}


def ensure_debian_root(recipe: DebianRecipe, watch: Watcher) -> Path:
    """Return the root folder of a Debian container image. Build the image if the cache has none.

    Raise LabImpossible if the image cannot be built.
    """
    folder = ensure_built(recipe, lambda new, lock: install_packages(recipe, new / "rootfs", lock), watch)
    return folder / "rootfs"


def ensure_debian_disk(watch: Watcher) -> Path:
    """Return the path of a Debian disk (qcow2) with boot loader and kernel. Build the image if the cache has none.

    Raise LabImpossible if the image cannot be built.
    """
    return ensure_built(DISK, _build_disk, watch) / "disk.qcow2"


def write_image(target: Path, watch: Watcher) -> None:
    """Write an image to ``target``: the container image for the suffix ``.tar``, the disk for the suffix ``.qcow2``.

    Raise BadInput for another suffix, an existing file, or a folder that cannot be written. Raise LabImpossible if the
    image cannot be built or written.
    """
    if target.suffix not in {".tar", ".qcow2"}:
        raise BadInput(f"{target}: expected a file name that ends with .tar or .qcow2")
    if target.exists():
        raise BadInput(f"{target}: expected a new file, but the file exists: remove it, or choose another name")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise BadInput(f"{target}: expected a folder that you can write, got {target.parent}")
    built = ensure_debian_root(CLOUD, watch) if target.suffix == ".tar" else ensure_debian_disk(watch)
    unfinished = target.with_name(f"{target.name}.part")
    try:
        if built.is_dir():
            boot_disk.run_program([*ARCHIVE, "-C", str(built), "-cf", str(unfinished), "."])
        else:
            shutil.copyfile(built, unfinished)
        unfinished.rename(target)
    except (OSError, subprocess.CalledProcessError) as error:
        raise LabImpossible(f"{target}: the image was built but could not be written: {_reason(error)}") from error
    finally:
        unfinished.unlink(missing_ok=True)


def _build_disk(folder: Path, lock: IO[str]) -> None:
    tree = folder / "tree"
    install_packages(DISK, tree, lock)
    boot_disk.make_boot_disk(tree, folder / "disk.qcow2")
    shutil.rmtree(tree)


def ensure_built(recipe: DebianRecipe, build: Callable[[Path, IO[str]], None], watch: Watcher) -> Path:
    """Return the folder of an image. If the folder is missing, call ``build`` to create it.

    ``build`` fills a temporary folder, which is renamed when it is complete. Raise LabImpossible if the image cannot be
    built.
    """
    folder = recipe.folder(apt_sources.release())
    if folder.exists():
        return folder
    with _lock_builds(watch) as lock:
        if not folder.exists():
            _remove_incomplete()
            step = f"image {recipe.name}"
            watch(LabEvent(step, "begin"))
            watch(LabEvent(step, "note", f"building {folder} from Debian's packages: a minute or two, once"))
            _build_atomically(recipe, folder, lambda unfinished: build(unfinished, lock))
            watch(LabEvent(step, "done"))
    return folder


@contextlib.contextmanager
def _lock_builds(watch: Watcher) -> Iterator[IO[str]]:
    """Hold the lock of image builds within the block. Yield the lock's open file.

    Programs that inherit the open file hold the lock, too.
    """
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    with LOCK.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            watch(LabEvent("image", "note", "another process builds a Debian image: waiting until it ends"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock


def _remove_incomplete() -> None:
    for path in Path(CACHE).glob("debian-*.new"):
        shutil.rmtree(path)


def _build_atomically(recipe: DebianRecipe, folder: Path, build: Callable[[Path], None]) -> None:
    unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", suffix=".new", dir=folder.parent))
    try:
        build(unfinished)
        unfinished.chmod(recipe.folder_mode)
        unfinished.rename(folder)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        raise LabImpossible(f"image {recipe.name} could not be built in {folder.parent}: {_reason(error)}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return f"{error.cmd[0]} failed with exit code {error.returncode}: {(error.stderr or '').strip()}"
    return str(error)


def install_packages(recipe: DebianRecipe, target: Path, lock: IO[str]) -> None:
    """Install a recipe's packages in the folder ``target``.

    Raise LabImpossible if mmdebstrap fails or is missing, if the machine is not x86_64, or if the user is not root.
    """
    _check_buildable()
    argv = ["mmdebstrap", "--mode=root", "--variant=minbase", "--format=directory", f"--hook-dir={MERGED_USR}"]
    argv += [f"--dpkgopt=path-exclude={pattern}" for pattern in OMITTED]
    argv += ["--dpkgopt=force-unsafe-io", '--aptopt=APT::Install-Recommends "false"']
    argv += [f"--aptopt={option}" for option in apt_sources.transfer_options()]
    argv += [f"--include={','.join(recipe.packages)}", f"--customize-hook={recipe.customize}"]
    argv += [apt_sources.release(), str(target), "-"]
    sources = apt_sources.debian_sources()
    with BUILD_LOG.open("w") as log:
        code = _run_to_end(argv, sources, log, lock)
    if code:
        tail = "".join(f"\n    {line}" for line in BUILD_LOG.read_text(errors="replace").splitlines()[-10:])
        raise LabImpossible(
            f"image {recipe.name}: mmdebstrap ended with exit code {code}; check that apt-get update succeeds and that "
            f"{CACHE} has 2 GB of free space; the end of {BUILD_LOG}:{tail}"
        )


def _check_buildable() -> None:
    if platform.machine() != "x86_64":
        raise LabImpossible(f"the lab builds Debian images for x86_64 only, but this machine is {platform.machine()}")
    if shutil.which("mmdebstrap") is None:
        raise LabImpossible("the Debian image needs mmdebstrap, which is not installed: apt-get install mmdebstrap")
    if os.geteuid() != 0:
        raise LabImpossible("building the Debian image needs root: run the command with sudo")


def _run_to_end(argv: list[str], sources: str, log: IO[str], lock: IO[str]) -> int:
    """On an interrupt, end mmdebstrap, which removes its mounts."""
    with subprocess.Popen(  # noqa: S603 - the recipes are constants
        argv, stdin=subprocess.PIPE, stdout=log, stderr=log, text=True, pass_fds=(lock.fileno(),)
    ) as program:
        try:
            program.communicate(sources)
        except BaseException:
            program.terminate()
            program.wait(END_S)
            raise
        return program.returncode
