"""The tables of gateways in networks: their own addresses, and the gateways that are routers."""

from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from sbf_service.store.columns import NAME_TYPE
from sbf_service.store.tables import Base


class GatewayAddressRow(Base):
    """An address of a gateway in a network, until the network ends.

    ``network_id`` is the ID of the cluster that created the network.
    """

    __tablename__ = "gateway_addresses"

    network_id: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("clusters.id"), primary_key=True)
    address: Mapped[str] = mapped_column(String(39), primary_key=True)
    prefix_length: Mapped[int]
    gateway: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("elements.name"), index=True)


class NetworkRouterRow(Base):
    """The gateway that is the router of a network. The network's other gateways replace it if it does not answer."""

    __tablename__ = "network_routers"

    network_id: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("clusters.id"), primary_key=True)
    gateway: Mapped[str] = mapped_column(NAME_TYPE, ForeignKey("elements.name"), index=True)
