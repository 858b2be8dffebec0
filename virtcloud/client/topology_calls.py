"""Calls about the topology, sites, pools, quarantined VLAN IDs, cables and the preparation of a site."""

from collections.abc import Iterator

from virtcloud.client.calls import DEVICE_S, PAGE_SIZE, SbfCalls, entity_tag, validated, version_of
from virtcloud.model.element_views import CleanDeclaration, Pool, SiteView
from virtcloud.model.site import SiteCables, SitePart, SitePreparation
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name, VlanId


class TopologyCalls(SbfCalls):
    """Calls about the topology and sites. Each call about one site raises NotFound for an unknown site."""

    def put_topology(self, topology: Topology, version: str | None = None) -> Topology:
        """Replace the topology. Idempotent. ``version`` is the version that the caller read, or ``ANY_VERSION``.

        Raise BadInput or Conflict for an invalid topology. ``version`` may be None for the first topology, and for a
        topology that equals SBF's topology; otherwise, None raises PreconditionRequired. Raise PreconditionFailed if
        SBF's topology changed since ``version``.
        """
        answer = self._connection.send("PUT", "/v1/topology", topology, if_match=entity_tag(version))
        return self._document(Topology, answer)

    def topology(self) -> Topology:
        """Return the topology. Raise NotFound if no topology was set yet."""
        return self._document(Topology, self._connection.send("GET", "/v1/topology"))

    def versioned_topology(self) -> tuple[Topology, str | None]:
        """Return the topology, for a caller that will modify it, and the topology's version.

        The version is None if SBF is too old to send versions. Raise NotFound if there is no topology. Raise Conflict
        if a newer SBF sent keys that this client would delete.
        """
        answer = self._connection.send("GET", "/v1/topology")
        return self._document_to_change(Topology, answer), version_of(answer)

    def site_part(self, site: str) -> tuple[SitePart, str | None]:
        """Return one site's part of the topology, for a caller that will modify the part, and the part's version.

        Raise Conflict if a newer SBF sent keys that this client would delete.
        """
        answer = self._connection.send("GET", f"/v1/sites/{Name(site)}/topology")
        return self._document_to_change(SitePart, answer), version_of(answer)

    def put_site_part(self, part: SitePart, version: str | None = None) -> SitePart:
        """Replace one site's part of the topology. Idempotent.

        ``version`` is the part's version that the caller read (:meth:`site_part`), or ``ANY_VERSION``. The errors are
        those of :meth:`put_topology`, but SBF compares only the part and the part's version.
        """
        path = f"/v1/sites/{part.site.name}/topology"
        return self._document(SitePart, self._connection.send("PUT", path, part, if_match=entity_tag(version)))

    def sites(self) -> list[SiteView]:
        """Return all sites with the state of their pools."""
        return self._documents(SiteView, self._connection.send("GET", "/v1/sites"))

    def site_pages(self, *, size: int = PAGE_SIZE) -> Iterator[list[SiteView]]:
        """Yield the sites in pages of ``size``, by name."""
        return self._pages(SiteView, "/v1/sites", {}, size)

    def site(self, name: str) -> SiteView:
        """Return one site."""
        return self._document(SiteView, self._connection.send("GET", f"/v1/sites/{Name(name)}"))

    def pool(self, site: str) -> Pool:
        """Return a site's pool."""
        return self._document(Pool, self._connection.send("GET", f"/v1/sites/{Name(site)}/pool"))

    def versioned_pool(self, site: str) -> tuple[Pool, str | None]:
        """Return a site's pool, for a caller that will replace the pool, and the pool's version."""
        answer = self._connection.send("GET", f"/v1/sites/{Name(site)}/pool")
        return self._document(Pool, answer), version_of(answer)

    def put_pool(self, site: str, pool: Pool, version: str | None = None) -> Pool:
        """Set a site's pool. Idempotent.

        ``version`` is the version that the caller read, or None to replace any version. Raise BadInput for reserved
        VLAN IDs. Raise Conflict if the new pool lacks a VLAN ID that is in use. Raise PreconditionFailed if the pool
        changed since ``version``.
        """
        path = f"/v1/sites/{Name(site)}/pool"
        return self._document(Pool, self._connection.send("PUT", path, pool, if_match=entity_tag(version)))

    def declare_clean(self, site: str, vlan: int, *, reason: str, cluster_id: str | None = None) -> SiteView:
        """Declare a quarantined VLAN ID of a site clean. Idempotent. SBF records the reason and the caller's name.

        Raise BadInput for a blank reason. Raise Conflict for a VLAN ID in use, and for a VLAN ID of a cluster other
        than ``cluster_id``. If ``cluster_id`` is None, any cluster is accepted.
        """
        path = f"/v1/sites/{Name(site)}/quarantine/{VlanId(vlan)}/clean"
        declaration = validated(CleanDeclaration, reason=reason)
        query = {"cluster_id": cluster_id}
        return self._document(SiteView, self._connection.send("POST", path, declaration, query=query))

    def check_cables(self, site: str) -> SiteCables:
        """Request that SBF reads a site's switches. Return the comparison of the site's cables with the topology."""
        path = f"/v1/sites/{Name(site)}/verify"
        return self._document(SiteCables, self._connection.send("POST", path, wait=DEVICE_S))

    def preparation(
        self,
        site: str,
        platform: str | None = None,
        port: str | None = None,
        core_port: str | None = None,
        transport: str | None = None,
    ) -> SitePreparation:
        """Return the commands with which administrators prepare a site.

        Raise NotFound for an unknown transport. Raise BadInput for an unknown platform, for options that have no effect
        at this site, or if ``port`` and ``core_port`` are the same. Raise Conflict if the site is not attached to
        ``transport`` (None: to any transport), or if the platform cannot be used for this preparation.
        """
        query = {"platform": platform, "port": port, "core_port": core_port, "transport": transport}
        path = f"/v1/sites/{Name(site)}/preparation"
        return self._document(SitePreparation, self._connection.send("GET", path, query=query))
