"""Images of guests. The file ``<images>/<name>/image.yaml`` describes an image: its kind and its files.

To use an image, a user needs permission to read the image's description.
"""

import grp
import os
import pwd
import stat
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from virtcloud.agent.guests.rooted_files import GuestRoot, RootedFiles
from virtcloud.model.document import Document
from virtcloud.model.errors import BadDocument, BadInput, Refused, VirtcloudError
from virtcloud.model.yaml_document import parse_yaml

IMAGE_FILE = "image.yaml"


class LxcImage(Document):
    """An image for containers: a root file system, which is never changed. Each guest has an overlay over the root."""

    kind: Literal["lxc"]
    rootfs: Path = Path("rootfs")
    init: str = "/sbin/init"
    arguments: tuple[str, ...] = ()


class QemuImage(Document):
    """An image for virtual machines: a kernel, a disk, or both. Without a kernel, QEMU boots from the disk.

    ``disk`` is never changed: each guest has an overlay over ``disk``. The overlay is removed with the guest.
    """

    kind: Literal["qemu"]
    kernel: Path | None = None
    initrd: Path | None = None
    cmdline: str = "console=ttyS0"
    disk: Path | None = None
    disk_format: Annotated[str, Field(pattern="raw|qcow2")] = "qcow2"

    @model_validator(mode="after")
    def _check_bootable(self) -> Self:
        if self.kernel is None and self.disk is None:
            raise BadInput("expected a kernel, a disk, or both; got neither", ("kernel",))
        return self


GuestImage = LxcImage | QemuImage
IMAGE_KINDS: dict[str, type[GuestImage]] = {"lxc": LxcImage, "qemu": QemuImage}


def read_image(folder: Path, name: str) -> GuestImage:
    """Return the image ``name`` with absolute paths of its files.

    Raise Refused if the image, one of its files or its init is missing, or if the description is malformed. Also raise
    Refused if untrusted users can change the description.
    """
    path = folder / name / IMAGE_FILE
    _check_trusted(path)
    try:
        text = path.read_text("utf-8-sig", errors="replace")
    except OSError as error:
        known = ", ".join(sorted(description.parent.name for description in folder.glob(f"*/{IMAGE_FILE}"))) or "none"
        raise Refused(
            f"image {name}: cannot read {path}: {error.strerror}; images on this host: {known}; images of the "
            "catalogue: virtcloud image list"
        ) from error
    try:
        image = _parse(text, path)
    except BadDocument as error:
        faults = "; ".join(str(error).splitlines())
        raise Refused(f"image {name}: its description is malformed: {faults}; correct {path}") from error
    image = image.model_copy(update=_resolve_files(image, path.parent))
    if isinstance(image, LxcImage):
        _check_init(image, path)
    return image


def _check_trusted(path: Path) -> None:
    """Raise Refused if untrusted users can write to an image's folder or description.

    The description can name any file of this host, which the agent then reads as root. Therefore the image's folder and
    the description must belong to root, to this process's user, or to the owner of the folder of images. If a file is
    missing, raise no error.
    """
    try:
        trusted_uids = {0, os.geteuid(), path.parent.parent.stat().st_uid}
        statuses = {part: part.stat() for part in (path.parent, path)}
    except OSError:
        return
    for part, status in statuses.items():
        if status.st_uid not in trusted_uids or status.st_mode & stat.S_IWOTH:
            raise Refused(
                f"image {path.parent.name}: untrusted users can write to {part}, and could read any file of this host "
                f"through the image: chown root {part}, chmod o-w {part}"
            )


class _Kind(Document):
    model_config = ConfigDict(extra="ignore")

    kind: Literal["lxc", "qemu"]


def _parse(text: str, path: Path) -> GuestImage:
    description = parse_yaml(text, str(path))
    return description.read(IMAGE_KINDS[description.read(_Kind).kind])


def _resolve_files(image: GuestImage, folder: Path) -> dict[str, Path]:
    files = {key: folder / value for key, value in image if isinstance(value, Path)}
    for key, path in files.items():
        if not path.exists():
            raise Refused(f"image {folder.name}: its {key} {path} does not exist; correct {folder / IMAGE_FILE}")
    return files


def _check_init(image: LxcImage, path: Path) -> None:
    """Raise Refused if a container's image has no init. Raise no error if the caller may not enter its folders."""
    try:
        has_init = RootedFiles(GuestRoot(image.rootfs, 0)).exists(image.init)
    except OSError:
        return
    if not has_init:
        raise Refused(
            f"image {path.parent.name}: expected the program {image.init} in its rootfs {image.rootfs}, found none: "
            f"install an init there, or correct {path}"
        )


READABLE_BY_ALL = "everybody"


class ImageView(Document):
    """An image as listed for a user.

    ``readable``: the user may use the image. ``trouble`` is the reason why no guest can use the image, or None.
    """

    name: str
    kind: str | None = None
    readable_by: str
    readable: bool
    trouble: str | None = None


def list_images(folder: Path) -> list[ImageView]:
    """Return the images of a folder, ordered by name. Raise BadInput if the folder cannot be read."""
    try:
        names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    except OSError as error:
        raise BadInput(
            f"{folder}: expected the folder of this host's images: {error.strerror}; name the folder with --images, or "
            "run the command on a host that runs guests"
        ) from error
    return [_describe_image(folder, name) for name in names if _is_image(folder / name)]


def _is_image(path: Path) -> bool:
    """Return True if a folder contains an image's description, or if the caller may not enter the folder."""
    try:
        return (path / IMAGE_FILE).exists() or not os.access(path, os.X_OK, effective_ids=True)
    except PermissionError:
        return True


def _describe_image(folder: Path, name: str) -> ImageView:
    path = folder / name / IMAGE_FILE
    readable = os.access(path, os.R_OK, effective_ids=True)
    image_view = ImageView(name=name, readable_by=describe_readers(path), readable=readable)
    if not readable:
        return image_view
    try:
        return image_view.model_copy(update={"kind": read_image(folder, name).kind})
    except VirtcloudError as error:
        return image_view.model_copy(update={"trouble": str(error)})


def describe_readers(path: Path) -> str:
    """Return who may read a file: "everybody", "group NAME", or the user name of the file's owner.

    The modes of the file and of the two folders above the file are considered. An ID replaces a missing name. If the
    caller may not read the modes, return "others". The result ignores that root may read every file.
    """
    try:
        file, *folders = (part.stat() for part in (path, path.parent, path.parent.parent))
    except PermissionError:
        return "others"
    if file.st_mode & stat.S_IROTH and all(folder.st_mode & stat.S_IXOTH for folder in folders):
        return READABLE_BY_ALL
    if file.st_mode & stat.S_IRGRP and all(_is_searchable(folder, file.st_gid) for folder in folders):
        return f"group {_group_name(file.st_gid)}"
    return _user_name(file.st_uid)


def _is_searchable(folder: os.stat_result, group: int) -> bool:
    bit = stat.S_IXGRP if folder.st_gid == group else stat.S_IXOTH
    return bool(folder.st_mode & bit)


def _group_name(identifier: int) -> str:
    try:
        return grp.getgrgid(identifier).gr_name
    except KeyError:
        return str(identifier)


def _user_name(identifier: int) -> str:
    try:
        return pwd.getpwuid(identifier).pw_name
    except KeyError:
        return str(identifier)
