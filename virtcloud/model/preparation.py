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
    """Whose task the sheet is."""
    device: str
    """The device to configure."""
    platform: str
    """The platform whose commands these are."""
    lines: tuple[str, ...] = ()
    """The commands."""
    notes: tuple[str, ...] = ()
    """What to observe."""
    to_fill: dict[str, str] = Field(default_factory=dict)
    """Words in angle brackets among the commands, with their meanings."""


class SitePreparation(Document):
    """All sheets of a site: its own side first, then what the backbone's administrators are given."""

    site: Name
    sheets: tuple[Sheet, ...] = ()
    """The sheets: the site's own first, then the backbone's."""
