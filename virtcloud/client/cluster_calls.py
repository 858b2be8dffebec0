"""Calls about clusters (create, show, extend, share, delete), and about jobs that batch servers confirm."""

from collections.abc import Collection, Iterator, Sequence

from pydantic import TypeAdapter

from virtcloud.client.calls import PAGE_SIZE, SbfCalls, flag_query, validated
from virtcloud.client.connection import LONGEST_WAIT_S
from virtcloud.model.cluster import ClusterRequest, ClusterState, LeaseExtension
from virtcloud.model.guest_seed import ClusterPeers
from virtcloud.model.outside_use import DestinationUseView
from virtcloud.model.path_check import ClusterVerification
from virtcloud.model.traffic import ElementTraffic
from virtcloud.model.values import ClusterKey, UserName
from virtcloud.model.views import ClusterView, JobStatement

VERIFY_S = 300.0
"""Additional timeout of the check of a cluster's paths, in seconds. With many hosts, the check takes minutes."""


class ClusterCalls(SbfCalls):
    """Calls about clusters and their jobs.

    A later cluster may have the same key. Therefore ``attempt``, ``owner`` and ``cluster_id`` identify the intended
    cluster. If the key belongs to another cluster now, calls that extend, share or delete a cluster raise Gone. The
    other calls with ``cluster_id`` apply to the intended cluster, even if it has ended.

    If no cluster ever had the key, every call with the argument ``key`` raises NotFound, except :meth:`put_cluster` and
    :meth:`send_job_statement`.
    """

    def put_cluster(self, key: str, request: ClusterRequest) -> ClusterView:
        """Request a cluster. Idempotent.

        Raise NoSuchHost for an unknown host. Raise Gone if ``attempt`` is outdated. Raise a subclass of Conflict if SBF
        cannot create the cluster now.
        """
        return self._document(ClusterView, self._connection.send("PUT", f"/v1/clusters/{ClusterKey(key)}", request))

    def cluster(
        self,
        key: str,
        after: int | None = None,
        wait: float = 0,
        cluster_id: str | None = None,
        until: Collection[ClusterState] = (),
    ) -> ClusterView:
        """Return a cluster.

        With ``after``, wait until the cluster's version is higher than ``after``, but at most ``wait`` seconds. With
        ``after`` and ``until``, the cluster must also be in one of the states in ``until``. An older SBF ignores
        ``until``. With ``cluster_id``, return the cluster with this ID, even if a later cluster has the key now.
        """
        query: dict[str, str | Sequence[str]] = {"until": sorted(until)} if until else {}
        query |= {} if cluster_id is None else {"id": cluster_id}
        path = f"/v1/clusters/{ClusterKey(key)}"
        return self._document(ClusterView, self._connection.poll(path, after, wait, query))

    def clusters(
        self,
        owner: str | None = None,
        *,
        ended: bool = False,
        network: str | None = None,
        limit: int | None = None,
        before: str | None = None,
    ) -> list[ClusterView]:
        """Return the running clusters of all owners, or only of ``owner``.

        ``network`` is the key or the name of a running cluster: return only the clusters of this cluster's network. If
        ``ended`` is true, return the newest ``limit`` (default 100) clusters, running or ended. If ``before`` is also
        set, return only clusters older than the cluster with the ID ``before``.
        """
        query = {"owner": owner, "network": network, "limit": limit, "before": before, **flag_query(ended=ended)}
        return self._documents(ClusterView, self._connection.send("GET", "/v1/clusters", query=query))

    def cluster_pages(  # noqa: PLR0913 - the filters of the call
        self,
        owner: str | None = None,
        *,
        ended: bool = False,
        network: str | None = None,
        state: str | None = None,
        site: str | None = None,
        element: str | None = None,
        newest: bool = False,
        size: int = PAGE_SIZE,
    ) -> Iterator[list[ClusterView]]:
        """Yield the clusters in pages of ``size``, the oldest cluster first (``newest``: the newest cluster first).

        Without ``ended`` and ``state``, yield only clusters that have not ended. If clusters are created or end between
        two pages, no other cluster is skipped or repeated. Raise BadInput for an unknown ``site`` or ``element``.
        """
        query: dict[str, str | float | None] = {"owner": owner, "network": network, "state": state, "site": site}
        query |= {"element": element, "order": "newest" if newest else "oldest", **flag_query(ended=ended)}
        return self._pages(ClusterView, "/v1/clusters", query, size)

    def extend_lease(
        self,
        key: str,
        seconds: float,
        attempt: int | None = None,
        owner: str | None = None,
        cluster_id: str | None = None,
    ) -> ClusterView:
        """Extend a cluster's lease to at least ``seconds`` from now; never shorten the lease. Idempotent.

        Raise BadInput for more than a year. Raise Conflict if the cluster is ending.
        """
        path, query = f"/v1/clusters/{ClusterKey(key)}/lease", {"attempt": attempt, "owner": owner, "id": cluster_id}
        extension = validated(LeaseExtension, seconds=seconds)
        return self._document(ClusterView, self._connection.send("POST", path, extension, query=query))

    def peers(self, key: str, cluster_id: str | None = None) -> ClusterPeers:
        """Return all guests of a cluster's network with their public host keys, and the login name in the guests.

        Raise Conflict if the cluster is ending or has ended.
        """
        answer = self._connection.send("GET", f"/v1/clusters/{ClusterKey(key)}/peers", query={"id": cluster_id})
        return self._document(ClusterPeers, answer)

    def verify_cluster(self, key: str, cluster_id: str | None = None) -> ClusterVerification:
        """Send packets of the cluster's MTU between all pairs of the cluster's hosts. Return the result of each pair.

        Raise Conflict unless the cluster is active or degraded. Also raise Conflict if the cluster has too many hosts.
        """
        path = f"/v1/clusters/{ClusterKey(key)}/verify"
        answer = self._connection.send("POST", path, query={"id": cluster_id}, wait=VERIFY_S)
        return self._document(ClusterVerification, answer)

    def share_network(
        self,
        key: str,
        user: str,
        *,
        shared: bool = True,
        cluster_id: str | None = None,
    ) -> ClusterView:
        """Share a cluster's network with ``user``. If ``shared`` is false, stop sharing the network. Idempotent.

        Raise Conflict if the cluster has joined another cluster's network, is ending or has ended.
        """
        path = f"/v1/clusters/{ClusterKey(key)}/shares/{UserName(user)}"
        answer = self._connection.send("PUT" if shared else "DELETE", path, query={"id": cluster_id})
        return self._document(ClusterView, answer)

    def delete_cluster(
        self, key: str, attempt: int | None = None, owner: str | None = None, cluster_id: str | None = None
    ) -> ClusterView:
        """Delete a cluster. Idempotent."""
        path, query = f"/v1/clusters/{ClusterKey(key)}", {"attempt": attempt, "owner": owner, "id": cluster_id}
        return self._document(ClusterView, self._connection.send("DELETE", path, query=query))

    def destination_uses(self, key: str) -> list[DestinationUseView]:
        """Return the outside destinations that a cluster's network has used."""
        answer = self._connection.send("GET", f"/v1/clusters/{ClusterKey(key)}/outside")
        return self._documents(DestinationUseView, answer)

    def traffic(self, key: str, cluster_id: str | None = None) -> list[ElementTraffic]:
        """Return the traffic of a cluster's network at each host and gateway in the last 15 minutes.

        Raise NoSuchCall if SBF is too old for this call.
        """
        answer = self._connection.send("GET", f"/v1/clusters/{ClusterKey(key)}/traffic", query={"id": cluster_id})
        return self._documents(ElementTraffic, answer)

    def requested_jobs(self, server: str, wait: float = 0) -> list[ClusterKey]:
        """Return the jobs that a batch server must confirm. If there is no job, wait up to ``wait`` seconds."""
        query: dict[str, str | float | None] = {"server": server, "wait": min(wait, LONGEST_WAIT_S)}
        return self._connection.send("GET", "/v1/jobs", query=query, wait=wait).read(
            TypeAdapter(list[ClusterKey]).validate_json
        )

    def send_job_statement(self, key: str, statement: JobStatement) -> None:
        """Send a batch server's statement about a job.

        Idempotent. Raise Forbidden if the caller may not send this statement.
        """
        self._connection.send("PUT", f"/v1/jobs/{ClusterKey(key)}", statement)
