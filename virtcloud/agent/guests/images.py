"""Images of guests: the file ``<images>/<name>/image.yaml`` describes an image's kind and files.

A user with read permission for an image's description may use the image. The scheduler's hook lists the images that a
user may use.
"""

import grp
import os
import pwd
import stat
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from virtcloud.model.document import Document, read_document
from virtcloud.model.errors import BadDocument, BadInput, Refused, VirtcloudError

IMAGE_FILE = "image.yaml"


class LxcImage(Document):
    """A root file system that guests share read-only; each guest has its own empty ``/run`` and ``/tmp``."""

    kind: Literal["lxc"]
    rootfs: Path = Path("rootfs")
    init: str = "/sbin/init"
    arguments: tuple[str, ...] = ()


class QemuImage(Document):
    """A kernel that is booted directly. A guest's disk is an overlay over ``disk``, and is removed with the guest."""

    kind: Literal["qemu"]
    kernel: Path
    initrd: Path | None = None
    cmdline: str = "console=ttyS0"
    disk: Path | None = None
    disk_format: Annotated[str, Field(pattern="raw|qcow2")] = "qcow2"


GuestImage = LxcImage | QemuImage
IMAGE_KINDS: dict[str, type[GuestImage]] = {"lxc": LxcImage, "qemu": QemuImage}


def read_image(folder: Path, name: str) -> GuestImage:
    """Return the image ``name``, with the absolute paths of its files.

    Raise Refused when the image or one of its files is missing, or when its description is malformed. Repeating the
    call does not help, so a cluster that needs the image fails after a few refusals, before its deadline.
    """
    path = folder / name / IMAGE_FILE
    _check_trusted(path)
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        known = ", ".join(sorted(one.parent.name for one in folder.glob(f"*/{IMAGE_FILE}"))) or "none"
        raise Refused(f"image {name}: cannot read {path}: {error.strerror}; this machine has: {known}") from error
    try:
        image = _parse(text, path)
    except BadDocument as error:
        faults = "; ".join(str(error).splitlines())
        raise Refused(f"image {name}: its description is malformed: {faults}; correct {path}") from error
    return image.model_copy(update=_resolve_files(image, path.parent))


def _check_trusted(path: Path) -> None:
    """Raise Refused for an image whose description untrusted users can write.

    The description may name any file of this host, which root then reads. The folder and the description must belong to
    root, to this process's user or to the owner of the folder of images. A missing file is no error here.
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
    """The image's kind, which determines the other keys of the image."""

    model_config = ConfigDict(extra="ignore")

    kind: Literal["lxc", "qemu"]


def _parse(text: str, path: Path) -> GuestImage:
    try:
        return read_document(text, str(path), IMAGE_KINDS[read_document(text, str(path), _Kind).kind])
    except RecursionError as error:
        raise BadDocument(f"{path}:1: expected a flat mapping, got one that is nested too deeply") from error


def _resolve_files(image: GuestImage, folder: Path) -> dict[str, Path]:
    files = {key: folder / value for key, value in image if isinstance(value, Path)}
    for key, path in files.items():
        if not path.exists():
            raise Refused(f"image {folder.name}: its {key} {path} does not exist; correct {folder / IMAGE_FILE}")
    return files


READABLE_BY_ALL = "everybody"


class ImageView(Document):
    """An image.

    ``readable``: the caller may use the image. ``trouble``: the reason why a guest with this image cannot start.
    """

    name: str
    kind: str | None = None
    readable_by: str
    readable: bool
    trouble: str | None = None


def list_images(folder: Path) -> list[ImageView]:
    """Return the images of a folder, ordered by name. Raise BadInput when the folder cannot be read."""
    try:
        names = sorted(one.name for one in folder.iterdir() if one.is_dir())
    except OSError as error:
        raise BadInput(
            f"{folder}: expected the folder of this machine's images: {error.strerror}; name it with --images, or look "
            "on a host that runs guests"
        ) from error
    return [_describe_image(folder, name) for name in names if _is_image(folder / name)]


def _is_image(path: Path) -> bool:
    """Return whether a folder contains a description, or may contain a description that the caller cannot see."""
    try:
        return (path / IMAGE_FILE).exists() or not os.access(path, os.X_OK, effective_ids=True)
    except PermissionError:
        return True


def _describe_image(folder: Path, name: str) -> ImageView:
    path = folder / name / IMAGE_FILE
    readable = os.access(path, os.R_OK, effective_ids=True)
    made = ImageView(name=name, readable_by=describe_readers(path), readable=readable)
    if not readable:
        return made
    try:
        return made.model_copy(update={"kind": read_image(folder, name).kind})
    except VirtcloudError as error:
        return made.model_copy(update={"trouble": str(error)})


def describe_readers(path: Path) -> str:
    """Return the users who may read a file according to its mode: everybody, a group, or one user.

    root may read every file.
    """
    try:
        file, *folders = (one.stat() for one in (path, path.parent, path.parent.parent))
    except PermissionError:
        return "others"
    if file.st_mode & stat.S_IROTH and all(one.st_mode & stat.S_IXOTH for one in folders):
        return READABLE_BY_ALL
    if file.st_mode & stat.S_IRGRP and all(_is_searchable(one, file.st_gid) for one in folders):
        return f"group {_group_name(file.st_gid)}"
    return _user_name(file.st_uid)


def _is_searchable(folder: os.stat_result, group: int) -> bool:
    bit = stat.S_IXGRP if folder.st_gid == group else stat.S_IXOTH
    return bool(folder.st_mode & bit)


def _group_name(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def _user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
