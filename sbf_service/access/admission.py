"""Whether a cluster may have a part on its hosts, and its guests their images. Pure."""

from collections.abc import Iterator

from virtcloud.model.access import Role
from virtcloud.model.admission import EVERYBODY, Admits, Origin
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.element import Host
from virtcloud.model.errors import NotAdmitted
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name, UserName

BATCH = tuple(f"{role}@" for role in (Role.SCHEDULER, Role.JOB_STARTER))
"""So those who ask for jobs' clusters are called in the audit log; no user's name begins so."""


def origin_of(owner: UserName, who: str | None) -> Origin:
    """Return where a cluster comes from; ``who`` asked for it, None for one from before that was kept."""
    return Origin(owner=owner, batch=who is None or who.startswith(BATCH))


def check_admitted(topology: Topology, spec: ClusterSpec, origin: Origin) -> None:
    """Raise NotAdmitted for the first host that does not admit a cluster, or image that its user may not name there."""
    for fault in _faults(topology, spec, origin):
        raise NotAdmitted(fault)


def _faults(topology: Topology, spec: ClusterSpec, origin: Origin) -> Iterator[str]:
    for name in spec.all_hosts:
        admits, _ = _rules(topology, name)
        if not admits.allows(origin):
            whose = f"a batch job of {origin.owner}" if origin.batch else origin.owner
            yield f"host {name} is for {admits}, not for {whose}: see 'admits' of the host or its site in the topology"
    for guest in spec.guests:
        _, images = _rules(topology, guest.host)
        if not origin.batch and images is not None and guest.image not in images:
            known = ", ".join(images) or "none"
            yield (
                f"guest {guest.name}: {origin.owner} may not name image {guest.image} on host {guest.host}; "
                f"images for users there: {known}"
            )


def _rules(topology: Topology, name: Name) -> tuple[Admits, tuple[Name, ...] | None]:
    """Return whom a host admits, and which images users may name there (None: any); its own rule, or its site's.

    What is no host of the topology is refused elsewhere.
    """
    host = topology.elements.get(name)
    if not isinstance(host, Host):
        return EVERYBODY, None
    site = topology.site_of[name]
    return host.admits or site.admits or EVERYBODY, site.images if host.images is None else host.images
