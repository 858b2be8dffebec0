"""Images in their folder: ``<images>/<name>/image.yaml`` says what kind they are and which files they have."""

import os
import stat
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from virtcloud.model.document import Document
from virtcloud.model.documents import read_document
from virtcloud.model.errors import BadDocument, Refused

FILE = "image.yaml"


class LxcImage(Document):
    """A root file system that guests share without writing to it; each has its own empty ``/run`` and ``/tmp``."""

    kind: Literal["lxc"]
    rootfs: Path = Path("rootfs")
    init: str = "/sbin/init"
    arguments: tuple[str, ...] = ()


class QemuImage(Document):
    """A kernel that is booted directly. A guest's own disk is an overlay over ``disk``, gone when the guest stops."""

    kind: Literal["qemu"]
    kernel: Path
    initrd: Path | None = None
    cmdline: str = "console=ttyS0"
    disk: Path | None = None
    disk_format: Annotated[str, Field(pattern="raw|qcow2")] = "qcow2"


Image = LxcImage | QemuImage
KINDS: dict[str, type[Image]] = {"lxc": LxcImage, "qemu": QemuImage}


def read_image(folder: Path, name: str) -> Image:
    """Read the image ``name``; its files are given as absolute paths.

    Raise :class:`Refused` when there is none, a file of it is missing, or its description is malformed: a repeated
    attempt does not help, so a cluster that needs the image fails after a few refusals and not at its deadline.
    """
    path = folder / name / FILE
    _check_trusted(path)
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        known = ", ".join(sorted(one.parent.name for one in folder.glob(f"*/{FILE}"))) or "none"
        raise Refused(f"image {name}: cannot read {path}: {error.strerror}; this machine has: {known}") from error
    try:
        image = _parse(text, path)
    except BadDocument as error:
        faults = "; ".join(str(error).splitlines())
        raise Refused(f"image {name}: its description is malformed: {faults}; correct {path}") from error
    return image.model_copy(update=_absolute(image, path.parent))


def _check_trusted(path: Path) -> None:
    """Raise Refused for an image whose description anybody could write: it may name any file, which root then reads.

    It must belong to root, to this process's user or to who has the folder of all images; what is not there is told
    elsewhere.
    """
    try:
        keepers = {0, os.geteuid(), path.parent.parent.stat().st_uid}
        found = {one: one.stat() for one in (path.parent, path)}
    except OSError:
        return
    for one, status in found.items():
        if status.st_uid not in keepers or status.st_mode & stat.S_IWOTH:
            raise Refused(
                f"image {path.parent.name}: {one} can be written by others than the images' administrators, and may "
                "name any file of this machine: chown it to root, chmod o-w"
            )


class _Kind(Document):
    """The key that decides which other keys an image has."""

    model_config = ConfigDict(extra="ignore")

    kind: Literal["lxc", "qemu"]


def _parse(text: str, path: Path) -> Image:
    try:
        return read_document(text, str(path), KINDS[read_document(text, str(path), _Kind).kind])
    except RecursionError as error:
        raise BadDocument(f"{path}:1: expected a flat mapping, got one that is nested too deeply") from error


def _absolute(image: Image, folder: Path) -> dict[str, Path]:
    files = {key: folder / value for key, value in image if isinstance(value, Path)}
    for key, path in files.items():
        if not path.exists():
            raise Refused(f"image {folder.name}: its {key} {path} does not exist; correct {folder / FILE}")
    return files
