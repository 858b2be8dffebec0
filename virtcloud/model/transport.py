"""Transports, and the service IDs of clusters on transports. A transport extends a VLAN between sites."""

from enum import StrEnum
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from virtcloud.model.document import Document
from virtcloud.model.errors import BadInput
from virtcloud.model.values import Name, PatternText, VlanId

Keys = frozenset[str]
VpnId = Annotated[int, Field(ge=1, le=2**32 - 1)]
AsNumber = Annotated[int, Field(ge=1, le=2**32 - 1)]


TAG_BYTES = 4
MIN_CLUSTER_MTU = 1280


class ServiceRange(PatternText):
    """A range of service IDs, written ``first-last``. Each cluster gets one service ID."""

    __slots__ = ()
    pattern = r"[1-9][0-9]{0,9}-[1-9][0-9]{0,9}"
    meaning = "a range of service IDs such as 10000-10999"

    def __new__(cls, value: str) -> Self:
        """Raise BadInput if the first service ID is higher than the last."""
        service_range = super().__new__(cls, value)
        if not service_range.service_ids:
            raise BadInput(f"expected {cls.meaning}, the lower ID first, got {value!r}")
        return service_range

    @property
    def service_ids(self) -> range:
        """All service IDs of the range."""
        first, _, last = self.partition("-")
        return range(int(first), int(last) + 1)


class TransportKind(StrEnum):
    """The kinds of transports. Each kind separates the frames of clusters in a different way."""

    DIRECT = "direct"
    QINQ = "qinq"
    VPLS = "vpls"
    EVPN = "evpn"


class Transport(Document):
    """A transport between sites.

    SBF configures nothing on these transports:

    - ``direct``: a dedicated circuit that carries the sites' VLAN tags unchanged
    - ``qinq`` (IEEE 802.1ad) with ``s_tag``: the backbone puts all frames of a site into one service VLAN

    SBF configures these transports at provider edges for each cluster:

    - ``qinq`` with ``s_tags``: a service VLAN for each cluster
    - ``vpls`` (RFC 4761, 4762) with ``vpn_id`` (one shared instance) or ``vpn_ids`` (an instance for each cluster)
    - ``evpn`` over VXLAN (RFC 7432, 8365) with ``vnis``
    """

    name: Name
    kind: TransportKind
    """The kind of transport."""
    s_tag: VlanId | None = None
    """The S-tag of a shared service VLAN."""
    s_tags: ServiceRange | None = None
    """The range of S-tags; each cluster gets one S-tag."""
    vpn_id: VpnId | None = None
    """The VPN id of a shared instance."""
    vpn_ids: ServiceRange | None = None
    """The range of VPN ids; each cluster gets one VPN id."""
    vnis: ServiceRange | None = None
    """The range of VNIs; each cluster gets one VNI."""
    asn: AsNumber | None = None
    """The autonomous system number of the backbone, for route targets."""
    mtu: Annotated[int, Field(ge=576, le=65535)] | None = None
    """The smallest MTU of the transport's links, in bytes. The Ethernet header and the outermost tag do not count.
    Null: unknown."""

    needs: ClassVar[dict[TransportKind, tuple[Keys, ...]]] = {
        TransportKind.DIRECT: (Keys(),),
        TransportKind.QINQ: (Keys({"s_tag"}), Keys({"s_tags"})),
        TransportKind.VPLS: (Keys({"vpn_id", "asn"}), Keys({"vpn_ids", "asn"})),
        TransportKind.EVPN: (Keys({"vnis", "asn"}),),
    }
    # Bytes that each kind of transport adds to a cluster's packet; the cluster's own VLAN tag does not count
    overheads: ClassVar[dict[TransportKind, int]] = {
        TransportKind.DIRECT: 0,
        TransportKind.QINQ: 0,  # the S-tag is the outermost tag
        TransportKind.VPLS: 26,  # RFC 4448: Ethernet header, two labels, control word
        TransportKind.EVPN: 50,  # RFC 7348: Ethernet header, VXLAN, UDP, IPv4
    }
    highest: ClassVar[dict[str, int]] = {"s_tags": VlanId.highest, "vpn_ids": 2**32 - 1, "vnis": 2**24 - 1}

    @property
    def services(self) -> range:
        """The service IDs that SBF allocates to networks; empty if networks share a service or need no service ID."""
        service_range = self.s_tags or self.vpn_ids or self.vnis
        return service_range.service_ids if service_range else range(0)

    @property
    def shared(self) -> int | None:
        """The ID of the service that all clusters share, or None."""
        return self.s_tag or self.vpn_id

    @property
    def service_ids(self) -> range:
        """The ID of the shared service, or all service IDs that SBF allocates; empty if there are none."""
        return range(self.shared, self.shared + 1) if self.shared else self.services

    def find_common_service_ids(self, other: "Transport") -> str:
        """Return the service IDs of both transports, such as ``150-199`` or ``7``; an empty text if there are none."""
        if not self.service_ids or not other.service_ids:
            return ""
        first = max(self.service_ids[0], other.service_ids[0])
        last = min(self.service_ids[-1], other.service_ids[-1])
        return f"{first}-{last}" if first < last else str(first) if first == last else ""

    @property
    def on_edges(self) -> bool:
        """Whether sites are attached at provider edges, which SBF configures for each cluster."""
        return bool(self.services) or self.vpn_id is not None

    @property
    def translates(self) -> bool:
        """Whether a cluster's VLAN ID may differ between sites.

        The VLAN ID may differ if each network has its own service, which carries no VLAN tags.
        """
        return bool(self.services)

    @property
    def cluster_mtu(self) -> int | None:
        """The MTU of clusters on this transport in bytes, or None if the transport's MTU is unknown."""
        carried_tag = 0 if self.kind is TransportKind.DIRECT or self.translates else TAG_BYTES
        return None if self.mtu is None else self.mtu - self.overheads[self.kind] - carried_tag

    @model_validator(mode="after")
    def _check_mtu(self) -> Self:
        if self.cluster_mtu is not None and self.cluster_mtu < MIN_CLUSTER_MTU:
            raise BadInput(
                f"transport {self.name}: expected at least {MIN_CLUSTER_MTU} bytes for a cluster's packets (IPv6, RFC "
                f"8200), got {self.cluster_mtu} with mtu {self.mtu}"
            )
        return self

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        given = {key for key in self.model_fields_set - {"name", "kind", "mtu"} if getattr(self, key) is not None}
        if given not in self.needs[self.kind]:
            expected = " or ".join(" and ".join(sorted(keys)) or "no further key" for keys in self.needs[self.kind])
            got = ", ".join(sorted(given)) or "nothing"
            raise BadInput(f"transport {self.name} of kind {self.kind}: expected {expected}, got {got}")
        for key in given & self.highest.keys():
            if getattr(self, key).service_ids[-1] > self.highest[key]:
                raise BadInput(f"{key}: expected service IDs up to {self.highest[key]}, got {getattr(self, key)}")
        return self
