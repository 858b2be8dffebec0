"""Publications: ports of gateways that lead to guests, as users request and see them."""

from datetime import datetime
from typing import Annotated

from pydantic import Field, IPvAnyAddress

from virtcloud.model.document import Document
from virtcloud.model.values import ClusterKey, Name

TcpPort = Annotated[int, Field(ge=1, le=65535)]


class PublicationRequest(Document):
    """A request to publish a TCP port of a guest at a site."""

    guest: Name
    """The guest."""
    port: TcpPort
    """The TCP port of the guest."""
    site: Name | None = None
    """The site whose gateway publishes the port; null: a site of the cluster that publishes ports."""


class PublicationView(Document):
    """A port of a gateway that leads to a guest."""

    cluster: ClusterKey
    cluster_id: str
    """Id of the guest's cluster."""
    guest: Name
    guest_port: TcpPort
    """The TCP port of the guest."""
    site: Name | None
    """The site of the gateway; null: the gateway is no longer in the topology."""
    gateway: Name
    address: IPvAnyAddress | None
    """The address at which users reach the guest; null: the topology no longer contains it."""
    port: TcpPort
    """The TCP port of this address."""
    created_at: datetime
    """When the port was published first."""
    created_by: str
    """The user who published the port."""
    suspended: str | None = None
    """Why the port does not lead to the guest at present; null: it does."""
    lease_ends: datetime
    """When the publication ends, with the lease of the cluster or of its network."""
