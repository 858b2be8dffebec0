"""Images in SBF's catalogue: their content, their sources, the users who may use them, and their certifications."""

import re
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from virtcloud.model.document import Document
from virtcloud.model.element import Hypervisor
from virtcloud.model.errors import BadInput
from virtcloud.model.values import Name, PatternText, UserName

HEAD_BYTES: Final = 512
"""The format of an image is recognized from this number of bytes at the beginning of the image's file."""
FETCHING: Final = "fetching image"
"""The beginning of an agent's report while a host fetches an image. This report is no error."""
UNPACKING: Final = "unpacking image"
"""The beginning of an agent's report while a host unpacks an image. This report is no error."""


class Sha256(PatternText):
    """The SHA-256 of an image's file."""

    __slots__ = ()
    pattern = r"[0-9a-f]{64}"
    meaning = "a SHA-256: 64 hexadecimal digits, lower case"


class Architecture(PatternText):
    """The processor architecture of an image, as ``uname -m`` prints it."""

    __slots__ = ()
    pattern = r"[a-z][a-z0-9_]{0,31}"
    meaning = "a processor architecture such as x86_64 or aarch64"


class ImageUrl(PatternText):
    """The address of an image's file. User names and passwords are not allowed, because every agent sees the URL."""

    __slots__ = ()
    pattern = r"https?://[A-Za-z0-9.\[\]:-]{1,255}(/[!-\"$-~]{0,1500})?"
    meaning = "an address such as https://example.org/debian-12.qcow2, without a user name or password"

    def __new__(cls, value: str) -> Self:
        """Check ``value``. An error about a user name or password does not repeat the value."""
        if isinstance(value, str) and not cls.matches(value):
            check_no_credentials(value)
        return super().__new__(cls, value)


CREDENTIALS: Final = re.compile(r"://([^/?#]*@|[^/?#@:\[]*:(?!\d*([/?#]|$)).*@)")
"""The user name and password in a URL (RFC 3986, section 3.2.1), even if the password contains '/', '?' or '#'."""


def check_no_credentials(url: str) -> None:
    """Raise BadInput if a URL contains a user name or password. The message does not repeat the URL."""
    if CREDENTIALS.search(url):
        raise BadInput(
            "expected a URL without a user name or password, because every agent and user of the image sees the URL; "
            "got a URL with them: download the file, and upload it (virtcloud image add NAME FILE)"
        )


class HostFile(PatternText):
    """The path of an image's file relative to each host's folder of images."""

    __slots__ = ()
    pattern = r"(?![^/]*/?\.\.?(/|$))(?!.*/\.\.?(/|$))(?!.*//)[A-Za-z0-9_][A-Za-z0-9._+/-]{0,254}"
    meaning = "a file in each host's folder of images, such as shared/debian-12.qcow2"


class ImageFormat(StrEnum):
    """The format of an image's file. Disks are for QEMU guests, archives of a root file system for LXC guests."""

    QCOW2 = "qcow2"
    RAW = "raw"
    TAR = "tar"
    TAR_GZ = "tar.gz"
    TAR_XZ = "tar.xz"
    TAR_ZST = "tar.zst"

    @property
    def kind(self) -> Hypervisor:
        """The kind of hypervisor that runs guests of an image in this format."""
        return Hypervisor.QEMU if self in {ImageFormat.QCOW2, ImageFormat.RAW} else Hypervisor.LXC


MAGIC: Final = (
    (ImageFormat.QCOW2, 0, b"QFI\xfb"),
    (ImageFormat.TAR_GZ, 0, b"\x1f\x8b"),
    (ImageFormat.TAR_XZ, 0, b"\xfd7zXZ\0"),
    (ImageFormat.TAR_ZST, 0, b"\x28\xb5\x2f\xfd"),
    (ImageFormat.TAR, 257, b"ustar"),
)
"""The signatures of formats: the format, the offset in the file, and the bytes there. Raw disks have no signature."""


def recognize_format(head: bytes) -> ImageFormat:
    """Return the format of a file that begins with ``head``. A file without a known signature is a raw disk."""
    return next((kind for kind, offset, magic in MAGIC if head[offset:].startswith(magic)), ImageFormat.RAW)


QCOW2_VERSIONS: Final = (2, 3)
UNDERSTOOD_FEATURES: Final = 0b11001
"""The incompatible features of a qcow2 file that are harmless: dirty reference counts (bit 0), the compression type
(bit 3) and extended L2 entries (bit 4). An external data file (bit 2) and a corrupt file (bit 1) are refused."""


def check_head(image_format: ImageFormat, head: bytes) -> None:
    """Raise BadInput unless a file that begins with ``head`` has the format ``image_format``.

    Also raise BadInput for a qcow2 file that is encrypted or corrupt, or that refers to another file. A reference to a
    backing file or to an external data file could make QEMU read any file of a host. Source:
    https://www.qemu.org/docs/master/interop/qcow2.html
    """
    found = recognize_format(head)
    if found is not image_format:
        raise BadInput(f"expected a file in format {image_format}, got a file in format {found}")
    if image_format is ImageFormat.QCOW2:
        _check_qcow2(head)


def _check_qcow2(head: bytes) -> None:
    version, backing_offset = int.from_bytes(head[4:8]), int.from_bytes(head[8:16])
    if version not in QCOW2_VERSIONS or len(head) < 104 - 32 * (version == QCOW2_VERSIONS[0]):
        raise BadInput(f"expected a qcow2 file of version 2 or 3, got version {version} in {len(head)} bytes")
    if backing_offset:
        raise BadInput(
            "expected a qcow2 file without a backing file, got a file that reads another file of the host; flatten it "
            "with: qemu-img convert -O qcow2 OLD NEW"
        )
    if int.from_bytes(head[32:36]):
        raise BadInput(
            "expected a qcow2 file without encryption, got an encrypted file; decrypt it with qemu-img convert"
        )
    features = int.from_bytes(head[72:80]) if version > QCOW2_VERSIONS[0] else 0
    if features & ~UNDERSTOOD_FEATURES:
        raise BadInput(
            "expected a qcow2 file without an external data file and without errors, got incompatible features "
            f"{features:#x}; convert it with: qemu-img convert -O qcow2 OLD NEW"
        )


ImageBytes = Annotated[int, Field(ge=1, lt=2**53)]


class ImageContent(Document):
    """The content of an image: one file with a checksum."""

    sha256: Sha256
    """Checksum of the file."""
    size: ImageBytes
    """Size of the file in bytes."""
    format: ImageFormat
    """Format of the file, which determines whether guests run on QEMU or in LXC."""
    architecture: Architecture
    """Processor architecture of the programs in the image."""

    @property
    def kind(self) -> Hypervisor:
        """The kind of hypervisor that runs guests of this image."""
        return self.format.kind


class ImageSource(ImageContent):
    """An image as an agent fetches it: from `url`, from `file`, or from SBF if both are null."""

    url: ImageUrl | None = None
    """Address from which hosts fetch the file."""
    file: HostFile | None = None
    """Path of the file in each host's folder of images."""

    @model_validator(mode="after")
    def _check_single_source(self) -> Self:
        if self.url is not None and self.file is not None:
            raise BadInput("expected url or file, got both")
        return self

    @property
    def is_stored(self) -> bool:
        """Whether SBF stores the file, because a user has uploaded the image."""
        return self.url is None and self.file is None


class ImageRequest(ImageSource):
    """A request to add an image whose file is not stored at SBF: exactly one of `url` and `file`."""

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if self.url is None and self.file is None:
            raise BadInput("expected url or file, got neither")
        if self.url is not None:  # images that earlier versions accepted must stay readable
            check_no_credentials(self.url)
        return self


class Certification(Document):
    """The statement of a site's administrator that an image may be trusted at this site."""

    site: Name
    by: str
    """The administrator."""
    at: datetime
    """When the administrator certified the image."""


class CatalogueImage(Document):
    """An image of the catalogue. An image without a certification is user-supplied."""

    name: Name
    owner: UserName
    kind: Hypervisor
    """Hypervisor of the image's guests."""
    source: ImageSource
    """The file, its checksum, and the address from which agents fetch it."""
    added_at: datetime
    """When the image was added."""
    everybody: bool = False
    """Whether every user may use the image."""
    shared_with: tuple[UserName, ...] = ()
    """Users who may use the image, besides its owner."""
    certified: tuple[Certification, ...] = ()
    """The certifications of the image, at most one for each site."""


class ImageShares(Document):
    """A change of the users who may use an image. Users in `remove` lose the right, users in `add` receive it."""

    add: tuple[UserName, ...] = ()
    """Users who may use the image from now on."""
    remove: tuple[UserName, ...] = ()
    """Users who may no longer use the image for new clusters."""
    everybody: bool | None = None
    """Whether every user may use the image; null: unchanged."""


class ImageCheck(Document):
    """The result of reading an image's file at SBF again."""

    name: Name
    sha256: Sha256
    """The recorded checksum."""
    found: str | None
    """The present checksum of the file; null: SBF does not store this image's file. In this case, agents check the
    checksum when they fetch the file."""
    intact: bool | None
    """Whether both checksums are equal; null: SBF does not store the file."""
