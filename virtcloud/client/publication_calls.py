"""Calls about publications: ports of gateways that lead to guests."""

from virtcloud.client.calls import SbfCalls
from virtcloud.model.gateway_access import PublishedProtocol
from virtcloud.model.publication import PublicationRequest, PublicationView
from virtcloud.model.values import ClusterKey, Name


class PublicationCalls(SbfCalls):
    """Calls about publications."""

    def publications(self, key: str, cluster_id: str | None = None) -> list[PublicationView]:
        """Return the published ports of a cluster's guests. Raise NotFound for an unknown cluster."""
        return self._documents(PublicationView, self._connection.send("GET", _path(key), query={"id": cluster_id}))

    def publish(self, key: str, request: PublicationRequest, cluster_id: str | None = None) -> PublicationView:
        """Publish a port of a guest; idempotent.

        Raise NotFound for an unknown cluster or guest. Raise NotAdmitted if the network has a guest without a certified
        image. Raise NoPortFree if all ports are taken. Raise NoGateway in these cases:

        - The requested site publishes no ports.
        - No site of the cluster publishes ports.
        - The cluster cannot be connected to any gateway that publishes ports at the site.
        """
        answer = self._connection.send("POST", _path(key), request, query={"id": cluster_id})
        return self._document(PublicationView, answer)

    def unpublish(  # noqa: PLR0913, PLR0917 - callers pass the options by name
        self,
        key: str,
        guest: str,
        port: int,
        site: str | None = None,
        cluster_id: str | None = None,
        protocol: PublishedProtocol = PublishedProtocol.TCP,
    ) -> list[PublicationView]:
        """End the publication of a port of a guest; idempotent. Return the publications that ended."""
        path = f"{_path(key)}/{Name(guest)}/{port}"
        named = None if protocol is PublishedProtocol.TCP else str(protocol)  # an earlier SBF lacks the parameter
        answer = self._connection.send("DELETE", path, query={"site": site, "id": cluster_id, "protocol": named})
        return self._documents(PublicationView, answer)


def _path(key: str) -> str:
    return f"/v1/clusters/{ClusterKey(key)}/publications"
