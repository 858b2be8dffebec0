"""The state of one fetch of an image: its identity, its progress, and whether a guest still needs the image."""

from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from virtcloud.model.errors import Refused, Unreachable, VirtcloudError
from virtcloud.model.image import FETCHING, ImageSource, Sha256
from virtcloud.model.values import Name

UNWANTED_S: Final = 120.0


def identify_fetch(name: Name, source: ImageSource) -> Sha256:
    """Return the identity of the fetch of an image: a digest of the image's source.

    If SBF sends the file, the identity also depends on the image's name: a failing source of one user's image must not
    stop the fetch of another user's image with the same checksum.
    """
    owner = name if source.is_stored else ""
    return Sha256(sha256(f"{owner}\n{source.model_dump_json()}".encode()).hexdigest())


class SlotYielded(Unreachable):
    """A fetch ended because no guest needed its image, and another fetch waited for the slot."""


@dataclass(slots=True)
class FetchState:
    """The state of a fetch in the background.

    ``wanted_at`` is when a guest last needed the image. ``reserved`` is the cache's space in bytes for the fetch,
    including the stored bytes. ``waits`` is whether the fetch waits for a slot. ``trouble`` is the error of the last
    attempt during the pause before the next attempt, otherwise None. ``error`` is the error that ended the fetch, or
    None.
    """

    name: Name
    source: ImageSource
    wanted_at: float
    reserved: int = 0
    done: int = 0
    waits: bool = True
    phase: str = FETCHING
    trouble: str | None = None
    error: VirtcloudError | None = None

    @property
    def id(self) -> Sha256:
        """The identity of the fetch."""
        return identify_fetch(self.name, self.source)

    @property
    def server(self) -> str:
        """The host name and port of the server that sends the file; for other files, ``"SBF"`` or ``"host"``."""
        if self.source.url is None:
            return "SBF" if self.source.file is None else "host"
        return self.source.url.partition("://")[2].partition("/")[0].lower()  # urlsplit raises ValueError for "[x"

    @property
    def missing(self) -> int:
        """The number of bytes that are reserved for the fetch and not stored yet."""
        return self.source.size - self.done if self.phase == FETCHING and self.reserved else 0

    def is_wanted(self, now: float) -> bool:
        """Return whether a guest has needed the image within `UNWANTED_S` seconds before ``now``."""
        return now - self.wanted_at <= UNWANTED_S

    def delays(self, other: "FetchState") -> bool:
        """Return whether ``other`` waits for a slot that this fetch can occupy.

        Fetches from URLs have their own slots.
        """
        return other.waits and (other.source.url is None) == (self.source.url is None)

    def error_for(self, name: Name) -> VirtcloudError | None:
        """Return the error that ended the fetch, or None while the fetch runs.

        The message names the image ``name``: another user may have started the fetch for an image with another name.
        """
        return Refused(f"image {name}: {self.error}") if isinstance(self.error, Refused) else self.error

    def describe(self, name: Name) -> str:
        """Return the progress for a user who calls the image ``name``, for example "fetching image debian: 40 %"."""
        percent = f": {100 * self.done // self.source.size} %" if self.phase == FETCHING else ""
        trouble = f"; {self.trouble}; trying again" if self.trouble else ""
        return f"{self.phase} {name}{percent}{trouble}"
