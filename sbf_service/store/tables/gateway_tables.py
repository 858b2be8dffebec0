"""The database tables about gateways in networks: addresses, routers, destinations, traffic and publications."""

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from sbf_service.store.tables.columns import NAME_TYPE, UtcDateTime
from sbf_service.store.tables.tables import Base, is_one_of
from virtcloud.model.gateway_access import PublishedProtocol


class GatewayAddressRow(Base):
    """An address of a gateway in a network. SBF deletes the row when the network has ended.

    ``network_id`` is the ID of the cluster that created the network.
    """

    __tablename__ = "gateway_addresses"

    network_id: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("clusters.id"), primary_key=True)
    address: Mapped[str] = mapped_column(String(39), primary_key=True)
    prefix_length: Mapped[int]
    gateway: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("elements.name"), index=True)


class NetworkRouterRow(Base):
    """The gateway that is the router of a network. If this gateway's agent is stale, SBF chooses another gateway."""

    __tablename__ = "network_routers"

    network_id: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("clusters.id"), primary_key=True)
    gateway: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("elements.name"), index=True)


class ServiceNodeRow(Base):
    """The service node of a network: the gateway that offers the network's services, such as NFS.

    The service node stays the same while it can offer the services. Otherwise, SBF chooses another gateway. SBF deletes
    the row when the network has ended. A network that an older version of SBF created has no row until the topology
    changes at a site of the network.
    """

    __tablename__ = "service_nodes"

    network_id: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("clusters.id"), primary_key=True)
    gateway: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("elements.name"))


class OutsideUseRow(Base):
    """A network's use of an outside destination through a gateway. SBF deletes the row when the network has ended.

    ``connections``, ``sent_bytes`` and ``received_bytes`` are sums over all reports. The columns ``reported_…`` are the
    counters in the gateway's latest report. SBF adds the increase of the counters between two reports to the sums.
    ``names`` contains the destination's FQDNs in the latest report; None for a former router of the network.
    """

    __tablename__ = "outside_uses"

    network_id: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("clusters.id"), primary_key=True)
    gateway: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("elements.name"), primary_key=True, index=True)
    destination: Mapped[str] = mapped_column(NAME_TYPE, primary_key=True)
    connections: Mapped[int] = mapped_column(BigInteger)
    sent_bytes: Mapped[int] = mapped_column(BigInteger)
    received_bytes: Mapped[int] = mapped_column(BigInteger)
    reported_connections: Mapped[int] = mapped_column(BigInteger)
    reported_sent_bytes: Mapped[int] = mapped_column(BigInteger)
    reported_received_bytes: Mapped[int] = mapped_column(BigInteger)
    since: Mapped[datetime] = mapped_column(UtcDateTime)
    reported_at: Mapped[datetime] = mapped_column(UtcDateTime)
    names: Mapped[str | None] = mapped_column(Text)


class TrafficRow(Base):
    """The last samples of a network's traffic counters at one host or gateway.

    SBF deletes the row when the network has ended, or at the next report of an element without a placement of the
    network.
    """

    __tablename__ = "traffic"

    network_id: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("clusters.id"), primary_key=True)
    element: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("elements.name"), primary_key=True, index=True)
    reported_at: Mapped[datetime] = mapped_column(UtcDateTime)
    samples: Mapped[str] = mapped_column(Text)


class PublicationRow(Base):
    """A gateway's port that leads to a guest. SBF deletes the row when the guest's cluster or the publication ends.

    ``suspended`` is the reason why the guest is not published at present, or None. ``moved_from`` is the gateway that
    published the guest before its agent became stale, or None.
    """

    __tablename__ = "publications"
    __table_args__ = (
        UniqueConstraint("cluster_id", "guest", "guest_port", "protocol", "gateway"),
        CheckConstraint(is_one_of("protocol", PublishedProtocol), name="protocol"),
    )

    gateway: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("elements.name"), primary_key=True)
    protocol: Mapped[str] = mapped_column(NAME_TYPE, primary_key=True)
    port: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    cluster_id: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("clusters.id"), index=True)
    guest: Mapped[str] = mapped_column(NAME_TYPE)
    guest_address: Mapped[str] = mapped_column(String(39))
    guest_port: Mapped[int]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    created_by: Mapped[str] = mapped_column(Text)
    suspended: Mapped[str | None] = mapped_column(Text)
    moved_from: Mapped[str | None] = mapped_column(NAME_TYPE)
