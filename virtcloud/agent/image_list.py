"""The images of a folder, with who may use each: whoever may read its description (the scheduler's hook asks that)."""

import grp
import os
import pwd
import stat
from pathlib import Path

from virtcloud.agent.images import FILE, read_image
from virtcloud.model.document import Document
from virtcloud.model.errors import BadInput, VirtcloudError

EVERYBODY = "everybody"


class ImageView(Document):
    """An image; ``readable`` says whether the caller may use it, ``trouble`` why a guest of it would not start."""

    name: str
    kind: str | None = None
    readable_by: str
    readable: bool
    trouble: str | None = None


def list_images(folder: Path) -> list[ImageView]:
    """Give the images of a folder by name; raises BadInput when the folder cannot be read."""
    try:
        names = sorted(one.name for one in folder.iterdir() if one.is_dir())
    except OSError as error:
        raise BadInput(
            f"{folder}: expected the folder of this machine's images: {error.strerror}; name it with --images, or look "
            "on a host that runs guests"
        ) from error
    return [_view(folder, name) for name in names if _is_image(folder / name)]


def _is_image(path: Path) -> bool:
    """Say whether a folder has a description, or may have one that the caller is not let see."""
    try:
        return (path / FILE).exists() or not os.access(path, os.X_OK, effective_ids=True)
    except PermissionError:
        return True


def _view(folder: Path, name: str) -> ImageView:
    path = folder / name / FILE
    readable = os.access(path, os.R_OK, effective_ids=True)
    made = ImageView(name=name, readable_by=readers(path), readable=readable)
    if not readable:
        return made
    try:
        return made.model_copy(update={"kind": read_image(folder, name).kind})
    except VirtcloudError as error:
        return made.model_copy(update={"trouble": str(error)})


def readers(path: Path) -> str:
    """Say who may read a file, as far as modes say it: everybody, a group, or one user; root may always."""
    try:
        file, *folders = (one.stat() for one in (path, path.parent, path.parent.parent))
    except PermissionError:
        return "others"
    if file.st_mode & stat.S_IROTH and all(one.st_mode & stat.S_IXOTH for one in folders):
        return EVERYBODY
    if file.st_mode & stat.S_IRGRP and all(_lets_pass(one, file.st_gid) for one in folders):
        return f"group {_group(file.st_gid)}"
    return _user(file.st_uid)


def _lets_pass(folder: os.stat_result, group: int) -> bool:
    bit = stat.S_IXGRP if folder.st_gid == group else stat.S_IXOTH
    return bool(folder.st_mode & bit)


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
