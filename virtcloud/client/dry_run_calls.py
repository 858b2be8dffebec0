"""Calls that return the effect of a change of a cluster, the topology or a pool, without the change."""

from virtcloud.client.calls import DEVICE_S, SbfCalls
from virtcloud.model.changes import ChangeDryRun, ClusterDryRun
from virtcloud.model.cluster import ClusterRequest
from virtcloud.model.element_views import Pool
from virtcloud.model.site import SitePart
from virtcloud.model.topology import Topology
from virtcloud.model.values import ClusterKey, Name


class DryRunCalls(SbfCalls):
    """Calls that return the effect of a change, without the change."""

    def dry_run_cluster(self, key: str, request: ClusterRequest) -> ClusterDryRun:
        """Return the effect that `ClusterCalls.put_cluster` would have now. SBF claims no VLAN ID and changes no data.

        Raise the same errors as `ClusterCalls.put_cluster`.
        """
        path = f"/v1/clusters/{ClusterKey(key)}"
        return self._document(ClusterDryRun, self._connection.send("PUT", path, request, query={"dry_run": "true"}))

    def dry_run_topology(self, topology: Topology) -> ChangeDryRun:
        """Request that SBF reads the affected devices. Return what `TopologyCalls.put_topology` would change.

        Raise BadInput or Conflict for an invalid topology.
        """
        path = "/v1/topology/dry-run"
        return self._document(ChangeDryRun, self._connection.send("POST", path, topology, wait=DEVICE_S))

    def dry_run_site_part(self, part: SitePart) -> ChangeDryRun:
        """Request that SBF reads the affected devices. Return what `TopologyCalls.put_site_part` would change.

        Raise BadInput or Conflict for an invalid part.
        """
        path = f"/v1/sites/{part.site.name}/topology/dry-run"
        return self._document(ChangeDryRun, self._connection.send("POST", path, part, wait=DEVICE_S))

    def dry_run_pool(self, site: str, pool: Pool) -> ChangeDryRun:
        """Request that SBF reads a site's devices. Return what `TopologyCalls.put_pool` would change.

        Raise BadInput for reserved VLAN IDs. Raise Conflict if the new pool lacks a VLAN ID that is in use.
        """
        path = f"/v1/sites/{Name(site)}/pool/dry-run"
        return self._document(ChangeDryRun, self._connection.send("POST", path, pool, wait=DEVICE_S))
