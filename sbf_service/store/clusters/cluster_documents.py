"""The documents of clusters: stored specs, stored image sources, and the views that SBF returns."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from threading import Lock
from types import MappingProxyType
from typing import Final, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from sbf_service.domain.cluster_status import PlacementStatus
from sbf_service.store.tables.cluster_tables import ClusterRecord, ClusterRow
from virtcloud.model.cluster import ENDED_STATES, ClusterSpec, ClusterState
from virtcloud.model.element import ElementKind
from virtcloud.model.image import ImageSource
from virtcloud.model.transport import Transport
from virtcloud.model.validation_errors import locate_first_fault
from virtcloud.model.values import ClusterKey, Name, UserName, VlanId
from virtcloud.model.views import ClusterTransport, ClusterView, PlacementProgress, PlacementView

CACHED_SPECS: Final = 32 * 1024**2
"""The maximum total length of the cached specs, in characters: 50,000 clusters of two guests, or 2,500 clusters of 64
guests. A parsed spec needs nine times the memory of its text."""
CACHED_SOURCES: Final = 4 * 1024**2
"""The maximum total length of the cached sources of images, in characters."""
LARGEST_SHARE: Final = 8
"""A text longer than the cache's capacity divided by this number is not cached: it would replace many texts."""
Parsed = TypeVar("Parsed")


class TextCache(Generic[Parsed]):
    """Parses texts, and keeps the results for the most recently used texts. Thread-safe.

    The length of the texts is a measure of memory; ``functools.lru_cache`` would limit only their number.
    """

    def __init__(self, parse: Callable[[str], Parsed], capacity: int) -> None:
        """Create an empty cache for texts of at most ``capacity`` characters in total.

        All callers get the same object, so ``parse`` must return an immutable object.
        """
        self._parse, self._capacity = parse, capacity
        self._results: OrderedDict[str, Parsed] = OrderedDict()
        self._lock = Lock()
        self.length = 0

    def parse(self, text: str) -> Parsed:
        """Return the parsed text. Raise the errors of the parser, which are not cached."""
        with self._lock:
            if text in self._results:
                self._results.move_to_end(text)
                return self._results[text]
        result = self._parse(text)
        if len(text) * LARGEST_SHARE <= self._capacity:
            self._add(text, result)
        return result

    def _add(self, text: str, result: Parsed) -> None:
        with self._lock:
            if text not in self._results:  # another thread may have parsed the text meanwhile
                self._results[text] = result
                self.length += len(text)
            while self.length > self._capacity:
                self.length -= len(self._results.popitem(last=False)[0])


_IMAGE_SOURCES = TypeAdapter(dict[Name, ImageSource])
_parsed_specs: Final = TextCache(ClusterSpec.model_validate_json, CACHED_SPECS)
_parsed_sources: Final = TextCache[Mapping[Name, ImageSource]](
    lambda images: MappingProxyType(_IMAGE_SOURCES.validate_json(images)), CACHED_SOURCES
)


def parse_image_sources(images: str) -> Mapping[Name, ImageSource]:
    """Parse the stored sources of a cluster's images; cached."""
    return _parsed_sources.parse(images)


def format_image_sources(images: Mapping[Name, ImageSource]) -> str | None:
    """Return the stored form of the sources of a cluster's images."""
    return _IMAGE_SOURCES.dump_json(dict(images), exclude_none=True).decode() if images else None


def make_joined_view(transport: Transport | None, service: int | None) -> ClusterTransport | None:
    """Return the view of a network's transport, with its own or shared service ID, if there is one."""
    if transport is None:
        return None
    service_id = transport.shared if service is None else service
    return ClusterTransport(
        transport=transport.name, kind=transport.kind, service=service_id, mtu=transport.cluster_mtu
    )


def parse_current_spec(row: ClusterRow | ClusterRecord) -> ClusterSpec:
    """Return a cluster's spec with SBF's choices, and with the current ``shares_with``.

    Raise ValidationError, with a note for SBF's log, if this version of SBF cannot read the stored spec. The cluster's
    elements then get no wanted state: a wanted state without the cluster would remove its network.
    """
    spec = row.resolved or row.spec
    try:
        return parse_spec(spec) if row.shares is None else _parse_shared_spec(spec, row.shares)
    except ValidationError as error:
        error.add_note(
            f"cluster {row.key} (ID {row.id}): this version of SBF cannot read the stored spec. The cluster's elements "
            "keep all their clusters, but get no changes: install the version of SBF that stored the spec, or a later "
            "version"
        )
        raise


def parse_shown_spec(row: ClusterRow, placements: tuple[PlacementStatus, ...] = ()) -> tuple[ClusterSpec, str | None]:
    """Return the spec to show to clients, and None or the reason why this version of SBF cannot read the stored spec.

    From an unreadable spec, the result contains only what SBF also knows from other data. Do not compute wanted states
    from this spec.
    """
    try:
        return parse_current_spec(row), None
    except ValidationError as error:
        return _make_known_spec(row, placements), (
            f"this version of SBF cannot read the stored spec ({locate_first_fault(error)}), and shows no guests and "
            "no options: install the version of SBF that stored the spec, or a later version, or delete the cluster"
        )


def _make_known_spec(row: ClusterRow, placements: tuple[PlacementStatus, ...]) -> ClusterSpec:
    """Return a spec with the owner, the hosts and, for a network, the name, the sites and the users who may join."""
    hosts = (status.element for status in placements if status.kind is ElementKind.HOST)
    known = ClusterSpec.model_construct(owner=UserName(row.owner), hosts=tuple(sorted(hosts)))
    if row.network is not None:
        return known
    return known.model_copy(
        update={
            "name": None if row.name is None else Name(row.name),
            "sites": tuple(sorted({status.site for status in placements})),
            "shares_with": _split_owners(row.shares or ""),
        }
    )


def parse_spec(spec: str) -> ClusterSpec:
    """Parse a stored spec; cached, because workers repeatedly read the specs of all clusters on a switch."""
    return _parsed_specs.parse(spec)


def _parse_shared_spec(spec: str, shares: str) -> ClusterSpec:
    return parse_spec(spec).model_copy(update={"shares_with": _split_owners(shares)})


def _split_owners(shares: str) -> tuple[UserName, ...]:
    return tuple(UserName(owner) for owner in shares.split(",") if owner)


def format_cluster(
    row: ClusterRow,
    network: ClusterKey | None,
    placements: tuple[PlacementStatus, ...],
    vlans: Mapping[Name, VlanId],
    joined: ClusterTransport | None,
) -> ClusterView:
    """Return the view of a cluster. ``network`` is the key of the network that the cluster joined, or None.

    The view's reason contains the fault of an unreadable spec.
    """
    spec, fault = parse_shown_spec(row, placements)
    return ClusterView(
        key=ClusterKey(row.key),
        id=row.id,
        attempt=row.attempt,
        version=row.version,
        state=ClusterState(row.state),
        reason="; ".join(filter(None, (row.reason, fault))) or None,
        vlans={} if row.state in ENDED_STATES and not row.quarantined else dict(vlans),
        joined=joined,
        quarantined=row.quarantined,
        lease_ends=row.lease_ends,
        spec=spec,
        placements=tuple(_format_placement(status) for status in placements),
        network=network,
        created_by=row.created_by,
    )


def _format_placement(status: PlacementStatus) -> PlacementView:
    waits = status.progress in {PlacementProgress.ADDING, PlacementProgress.REMOVING} or not status.reachable
    return PlacementView(
        element=status.element,
        kind=status.kind,
        site=status.site,
        progress=status.progress,
        trouble=status.trouble if waits else None,
        reachable=status.reachable,
        seen_at=status.last_seen,
    )
