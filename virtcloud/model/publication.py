"""Publications: ports of gateways that lead to guests, as users request and see them."""

from datetime import datetime
from typing import Annotated

from pydantic import Field, IPvAnyAddress

from virtcloud.model.document import OMIT_NONE, Document
from virtcloud.model.gateway_access import OMIT_TCP, PublishedProtocol
from virtcloud.model.values import ClusterKey, Name

TransportPort = Annotated[int, Field(ge=1, le=65535)]


class PublicationRequest(Document):
    """A request to publish a port of a guest at a site."""

    guest: Name
    """The guest."""
    port: TransportPort
    """The port of the guest."""
    protocol: Annotated[PublishedProtocol, OMIT_TCP] = PublishedProtocol.TCP
    """The transport protocol of the port."""
    site: Name | None = None
    """The site whose gateway publishes the port; null: SBF chooses a site of the cluster."""


class PublicationView(Document):
    """A port of a gateway that leads to a guest."""

    cluster: ClusterKey
    cluster_id: str
    """ID of the guest's cluster."""
    guest: Name
    guest_port: TransportPort
    """The port of the guest."""
    protocol: PublishedProtocol = PublishedProtocol.TCP
    """The transport protocol of both ports."""
    site: Name | None
    """The site of the gateway; null: the gateway is no longer in the topology."""
    gateway: Name
    address: IPvAnyAddress | None
    """The address at which users reach the guest; null: the topology no longer contains this address."""
    port: TransportPort
    """The port at which users reach the guest."""
    created_at: datetime
    """When the port was first published."""
    created_by: str
    """The user who published the port."""
    moved_from: Annotated[Name | None, OMIT_NONE] = None
    """The gateway that published the port before. SBF moved the publication, because this gateway did not answer. Null:
    SBF did not move the publication."""
    suspended: str | None = None
    """Why the port does not lead to the guest at present; null: the port leads to the guest."""
    lease_ends: datetime
    """When the publication ends: the end of the cluster's lease or of its network's lease, whichever is earlier."""
