"""What administrators configure once, before clusters may use a transport: the documents of ``site prepare``."""

from enum import StrEnum

from pydantic import Field

from virtcloud.model.document import Document
from virtcloud.model.values import Name


class Side(StrEnum):
    """Whose administrators a sheet is for."""

    SITE = "site"
    BACKBONE = "backbone"


class Sheet(Document):
    """What to type on one device, once. SBF never does.

    ``to_fill`` are the words in angle brackets among the lines that only the administrators know, with their meanings.
    """

    side: Side
    device: str
    platform: str
    lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    to_fill: dict[str, str] = Field(default_factory=dict)


class SitePreparation(Document):
    """All sheets of a site: its own side first, then what the backbone's administrators are given."""

    site: Name
    sheets: tuple[Sheet, ...] = ()
