"""How large one call may be, whoever makes it. Pure."""

from collections.abc import Iterator
from typing import Annotated, Final

from pydantic import Field

from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.document import Document
from virtcloud.model.errors import BeyondLimit

Count = Annotated[int, Field(ge=1, le=1_000_000)]


class Limits(Document):
    """``[limits]``: what is more is refused with 413 or 422 and the name of the limit."""

    body: Annotated[int, Field(ge=1024, le=1024**3)] = Field(4 * 1024**2, description="Bytes of one call's body.")
    hosts: Count = Field(4096, description="Hosts of one cluster, with those of its guests.")
    guests: Count = Field(4096, description="Guests of one cluster.")
    sites: Count = Field(4096, description="Sites that one cluster names.")
    shares: Count = Field(256, description="Owners whom one cluster names in `shares_with`.")
    addresses: Count = Field(16, description="Addresses of one guest.")


DEFAULTS: Final = Limits()


def check_spec(limits: Limits, spec: ClusterSpec) -> None:
    """Raise BeyondLimit for the first limit that a cluster's spec exceeds."""
    for name, number, most in _counts(limits, spec):
        if number > most:
            raise BeyondLimit(
                f"spec.{name}: expected at most {most}, got {number}; the limit is 'limits.{LIMIT[name]}' in the "
                "settings of this SBF"
            )


LIMIT: Final = {
    "shares_with": "shares",
    "hosts": "hosts",
    "guests": "guests",
    "sites": "sites",
    "addresses": "addresses",
}
"""The settings that limit the keys of a spec."""


def _counts(limits: Limits, spec: ClusterSpec) -> Iterator[tuple[str, int, int]]:
    yield "guests", len(spec.guests), limits.guests
    yield "hosts", max(len(spec.hosts), len(spec.all_hosts)), limits.hosts
    yield "sites", len(spec.sites), limits.sites
    yield "shares_with", len(spec.shares_with), limits.shares
    yield "addresses", max((len(guest.addresses) for guest in spec.guests), default=0), limits.addresses
