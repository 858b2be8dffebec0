"""Reads an image from a file or a URL, and determines the image's checksum, size and format.

These functions run on the user's machine, and show their progress on stderr.
"""

import hashlib
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO
from urllib.request import Request, urlopen

import click

from virtcloud import __version__
from virtcloud.model.errors import BadInput, Unreachable
from virtcloud.model.image import (
    HEAD_BYTES,
    Architecture,
    ImageContent,
    ImageFormat,
    Sha256,
    check_head,
    recognize_format,
)

READ_BYTES = 1 << 20
TIMEOUT_S = 60.0


def describe_content(
    source: str, expected: Sha256 | None, image_format: ImageFormat | None, architecture: str
) -> ImageContent:
    """Read the file or the URL ``source`` to its end. Return the checksum, size and format of the image.

    Raise Unreachable if the URL cannot be read. Raise BadInput in these cases:

    - The file cannot be read, is empty, or refers to other files.
    - The checksum differs from ``expected``.
    - The image is a raw disk, and ``image_format`` is not given.
    - The URL is invalid.
    """
    sha256, size, head = _read(source)
    if not size:
        raise BadInput(f"{source}: expected an image, got an empty file")
    if expected is not None and sha256 != expected:
        raise BadInput(f"{source}: expected sha256 {expected}, got {sha256}: get the file again")
    return ImageContent(
        sha256=sha256,
        size=size,
        format=_check_format(source, head, image_format),
        architecture=Architecture(architecture),
    )


def compute_sha256(source: str) -> Sha256:
    """Read the file or the URL ``source`` to its end. Return the checksum, even if the content is not an image.

    Raise Unreachable if the URL cannot be read. Raise BadInput if the file cannot be read, or the URL is invalid.
    """
    return _read(source)[0]


def _read(source: str) -> tuple[Sha256, int, bytes]:
    digest, size, head = hashlib.sha256(), 0, b""
    with _open(source) as (file, length):
        for data in _show_progress(_read_source(source, file), f"reading {source}", length):
            digest.update(data)
            size += len(data)
            head += data[: HEAD_BYTES - len(head)]
    if _is_url(source) and length is not None and size != length:  # http.client raises no error if the body ends early
        raise Unreachable(f"{source}: expected {length} bytes, got {size}: the connection was lost; try again")
    return Sha256(digest.hexdigest()), size, head


def check_file(source: str) -> None:
    """Raise BadInput if ``source`` is a pipe or a device, because its content cannot be read again for the upload."""
    path = Path(source)
    with _translate_errors(source):
        is_read_once = path.is_fifo() or path.is_char_device()
    if is_read_once:
        raise BadInput(f"{path}: expected a file, got a pipe or a device: write the image to a file first")


def read_file(path: Path, label: str, size: int) -> Iterator[bytes]:
    """Yield a file's content in pieces, and display the progress. Raise BadInput unless the file has ``size`` bytes."""
    found = 0
    with path.open("rb") as file:
        for data in _show_progress(_read_pieces(file), label, size):
            found += len(data)
            if found > size:
                break
            yield data
    if found != size:
        raise BadInput(
            f"{path}: expected {size} bytes, the size when virtcloud first read the file, got "
            f"{'more' if found > size else found}: another program changed the file; repeat the command when that "
            "program has ended"
        )


def _check_format(source: str, head: bytes, image_format: ImageFormat | None) -> ImageFormat:
    found = recognize_format(head)
    if image_format is None and found is ImageFormat.RAW:
        raise BadInput(
            f"{source}: expected a qcow2 disk or a tar archive (plain, gz, xz, zst), got another format; if the file "
            "is a raw disk, pass --format raw"
        )
    try:
        check_head(image_format or found, head)
    except BadInput as error:
        raise BadInput(f"{source}: {error}") from error
    return image_format or found


@contextmanager
def _open(source: str) -> Iterator[tuple[BinaryIO, int | None]]:
    with _translate_errors(source):
        opened, size = _open_url(source) if _is_url(source) else _open_file(Path(source))
    with opened as file:
        yield file, size


def _is_url(source: str) -> bool:
    return source.startswith(("http://", "https://"))


def _open_url(url: str) -> tuple[BinaryIO, int | None]:
    request = Request(url, headers={"user-agent": f"virtcloud/{__version__}"})  # noqa: S310 - the caller checks the scheme
    body = urlopen(request, timeout=TIMEOUT_S)  # noqa: S310 - as above
    return body, getattr(body, "length", None)


def _open_file(path: Path) -> tuple[BinaryIO, int | None]:
    return path.open("rb"), path.stat().st_size


@contextmanager
def _translate_errors(source: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise BadInput(f"{source}: expected an address such as https://example.org/debian-12.qcow2: {error}") from error
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        kind = Unreachable if _is_url(source) else BadInput
        raise kind(f"{source}: cannot be read: {getattr(reason, 'strerror', None) or reason}") from error


def _read_source(source: str, file: BinaryIO) -> Iterator[bytes]:
    with _translate_errors(source):
        yield from _read_pieces(file)


def _read_pieces(file: BinaryIO) -> Iterator[bytes]:
    while data := file.read(READ_BYTES):
        yield data


def _show_progress(pieces: Iterable[bytes], label: str, size: int | None) -> Iterator[bytes]:
    with click.progressbar(length=size or 0, label=label, file=sys.stderr, width=0) as bar:
        for data in pieces:
            yield data
            bar.update(len(data))
