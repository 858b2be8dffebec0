"""Whom a running network is shared with: changed after its creation, by its owner's call (REQUIREMENTS.md N6)."""

from sbf_service.access.limits import Limits, check_spec
from sbf_service.calls import ANY_OF_KEY, Fence
from sbf_service.store.audit import record
from sbf_service.store.keys import latest
from sbf_service.store.session import Unit
from sbf_service.store.standing import spec_of, view
from sbf_service.store.tables import ClusterRow
from virtcloud.model.cluster import WANTED, State
from virtcloud.model.errors import Conflict, NotFound
from virtcloud.model.views import ClusterView


def share(unit: Unit, key: str, owner: str, limits: Limits, fence: Fence = ANY_OF_KEY) -> ClusterView:
    """Share a cluster's network with ``owner``, who may join it from now on. Idempotent.

    Raise NotFound, Gone for a cluster that is not meant, Conflict for a member or a cluster that ends, BeyondLimit for
    more owners than the service's settings allow.
    """
    row = _network(unit, key, fence)
    owners = spec_of(row).shares_with
    if owner not in owners:
        check_spec(limits, spec_of(row).model_copy(update={"shares_with": (*owners, owner)}))
        _put(unit, row, (*owners, owner), f"shared with {owner}")
    return view(unit, row)


def unshare(unit: Unit, key: str, owner: str, fence: Fence = ANY_OF_KEY) -> ClusterView:
    """Stop sharing a cluster's network with ``owner``, whose members stay until they end. Idempotent.

    Raise NotFound, Gone for a cluster that is not meant, Conflict for a member or a cluster that ends.
    """
    row = _network(unit, key, fence)
    owners = spec_of(row).shares_with
    if owner in owners:
        _put(unit, row, tuple(one for one in owners if one != owner), f"no longer shared with {owner}")
    return view(unit, row)


def _network(unit: Unit, key: str, fence: Fence) -> ClusterRow:
    row = latest(unit, key)
    if row is None:
        raise NotFound(f"cluster {key} is not known")
    fence.check(key, row)
    if row.network is not None:
        raise Conflict(f"cluster {key} is a member of another cluster's network: the owner of that cluster shares it")
    if State(row.state) not in WANTED:
        raise Conflict(f"cluster {key} is {row.state}: its network cannot be shared any more")
    return row


def _put(unit: Unit, row: ClusterRow, owners: tuple[str, ...], why: str) -> None:
    row.shares, row.version = ",".join(owners), row.version + 1
    record(unit, "network_shared", why=why, cluster_id=row.id)
    unit.changed.add(f"cluster:{row.key}")
    unit.session.flush()
