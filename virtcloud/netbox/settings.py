"""The file that ``virtcloud netbox`` reads: the address of NetBox, and the meaning of its tags and roles. Pure."""

from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from virtcloud.model.document import Document
from virtcloud.model.errors import BadInput
from virtcloud.model.values import Name

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class NetBoxFile(Document):
    """The settings of ``virtcloud netbox``."""

    url: str = Field(pattern=r"^https?://[^\s]+$")
    """The address of NetBox, such as https://netbox.example.org."""
    token_file: str | None = None
    """The file with an API token of NetBox. The token needs only the right to read."""
    ca_file: str | None = None
    """The file with the CA certificates that verify NetBox's certificate; null: the system's CA certificates."""
    sites: Annotated[tuple[str, ...], Field(min_length=1)]
    """The slugs of the sites in NetBox."""
    tag: str | None = "virtcloud"
    """Only devices and VLANs with this tag are imported; null: all devices of the sites, and no VLANs."""
    switch_roles: tuple[str, ...] = ()
    """The slugs of the roles of switches."""
    host_roles: tuple[str, ...] = ()
    """The slugs of the roles of hosts."""
    platforms: dict[str, str] = Field(default_factory=dict)
    """The keys are slugs of platforms in NetBox, and the values are SBF's names of these platforms. For other slugs,
    SBF's name is the slug with '_' instead of '-'."""
    credential: Name | None = None
    """The name of the credential of each switch that has a credential neither in SBF's topology nor in NetBox."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        address = urlsplit(self.url)
        if address.scheme == "http" and address.hostname not in LOOPBACK:
            raise BadInput(
                f"expected an address with https, got {self.url}: the token would cross a network unencrypted", ("url",)
            )
        if not self.switch_roles:
            raise BadInput("expected at least one role of switches, got none", ("switch_roles",))
        if common := set(self.switch_roles) & set(self.host_roles):
            raise BadInput(f"expected roles of switches or of hosts, got {', '.join(sorted(common))} in both lists")
        return self
