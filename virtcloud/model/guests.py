"""Documents about the guests of a cluster: their wanted power states, and requests to stop, start and reset them."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from virtcloud.model.document import Document
from virtcloud.model.values import Address, ClusterKey, Name
from virtcloud.model.views import ElementMessage


class GuestPower(StrEnum):
    """The wanted power state of a guest."""

    ON = "on"
    OFF = "off"


class GuestPowerRequest(Document):
    """A request to stop, start or reset a guest; idempotent.

    ``resets`` is the number of all resets of the guest, including the requested reset. Therefore a repeated request
    does not reset the guest again. Without ``resets``, the guest is not reset.
    """

    power: GuestPower
    """`off` stops the guest, `on` starts it."""
    resets: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """The number of resets that the guest should have had after this call; null: do not reset the guest."""


class GuestView(Document):
    """A guest of a cluster: its wanted power state, and whether its host has confirmed this state.

    The state is confirmed if the host is reachable and ``confirmed_revision`` is at least ``wanted_revision``.
    ``trouble`` is the error that prevents the confirmation.
    """

    name: Name
    cluster: ClusterKey
    host: Name
    image: Name
    addresses: tuple[Address, ...] = ()
    """Addresses of `eth0`, each with its prefix length."""
    power: GuestPower
    """The wanted power state."""
    resets: int = 0
    """The number of requested resets."""
    wanted_revision: int
    """From this revision on, the host's wanted state contains the guest's wanted power state."""
    confirmed_revision: int
    """The latest revision that the host confirmed."""
    reachable: bool = True
    """Whether the host's agent is reachable."""
    trouble: ElementMessage | None = None
    """The error that prevents the host from confirming the wanted power state."""

    @property
    def is_confirmed(self) -> bool:
        """Whether the host has confirmed the wanted power state."""
        return self.reachable and self.confirmed_revision >= self.wanted_revision
