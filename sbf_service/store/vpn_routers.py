"""The device that is the router of a network, with the network's router addresses. There is at most one."""

from sqlalchemy import select

from sbf_service.store.cluster_documents import parse_current_spec
from sbf_service.store.cluster_tables import ClusterRow
from sbf_service.store.unit_of_work import Unit
from sbf_service.store.vpn_tables import VpnProfileRow
from virtcloud.model.errors import BadInput, Conflict


def check_router(unit: Unit, row: ClusterRow, network: ClusterRow, former: VpnProfileRow | None) -> None:
    """Raise an error if a device cannot become the router of a network. ``former`` is the device's former profile.

    Raise BadInput if the cluster is only a member of the network, or if the network was created without ``router:
    device``. Raise Conflict if another device is the router.
    """
    if row.id != network.id:
        raise BadInput(
            f"cluster {row.key}: expected the cluster that created the network, got a member of network {network.key}: "
            f"only the owner of {network.key} can make a device its router"
        )
    spec = parse_current_spec(network)
    if spec.router != "device":
        raise BadInput(
            f"cluster {row.key}: expected a cluster with router device, got router {spec.router or 'none'}: create "
            "the cluster with --router device"
        )
    is_router = VpnProfileRow.network_id == network.id, VpnProfileRow.router, VpnProfileRow.revoked_at.is_(None)
    present = unit.session.scalars(select(VpnProfileRow).where(*is_router)).one_or_none()
    if present is not None and present is not former:
        raise Conflict(
            f"cluster {row.key}: expected no router, got device {present.device} of {present.user}: revoke its profile "
            f"with 'virtcloud access revoke {row.key} {present.device} --user {present.user}'"
        )
