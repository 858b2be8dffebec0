"""The Python API: virtual clusters as objects, with methods to create, observe and delete them.

::

    from virtcloud import Client

    with Client() as client:
        cluster = client.create("demo", hosts=["brno-h1", "praha-h1"])
        cluster.wait_active(progress=True)  # a progress bar, in a terminal and in a notebook
        print(cluster.vlans)
        for name, result in cluster.run("hostname").items():  # on all guests at the same time, over ssh
            print(name, result.returncode, result.stdout)
        more = client.create("more", joins="demo", hosts=["plzen-h1"])  # a second cluster in the network of "demo"
        more.wait_active().delete(wait=True)
        cluster.delete(wait=True)
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from virtcloud.client.agent_client import DEFAULT_URL
from virtcloud.client.calls import PAGE_SIZE
from virtcloud.client.cluster import Cluster
from virtcloud.client.credentials import CA_VARIABLE, CERTIFICATE_VARIABLE, token_source
from virtcloud.client.http_clients import TlsTrust
from virtcloud.client.sbf import SbfClient
from virtcloud.model.changes import ClusterDryRun
from virtcloud.model.cluster import ClusterRequest, ClusterSpec
from virtcloud.model.errors import BadInput, NotFound

URL_VARIABLE = "VIRTCLOUD_URL"


class Client:
    """The virtual clusters of one installation.

    ``url`` has the form that :class:`SbfClient` describes. The default is ``VIRTCLOUD_URL``, or SBF's local socket.
    """

    def __init__(  # noqa: PLR0913 - callers pass each argument by its name
        self,
        url: str | None = None,
        timeout: float = 10.0,
        *,
        token: str | None = None,
        token_file: str | Path | None = None,
        ca_file: str | Path | None = None,
        certificate: str | Path | None = None,
    ) -> None:
        """Prepare the connection without sending a call. ``timeout`` is the timeout of one call, in seconds.

        If neither ``token`` nor ``token_file`` is given, :mod:`virtcloud.client.credentials` finds the token.
        ``ca_file`` (``VIRTCLOUD_CA_FILE``) contains the trusted certificate authorities; the default is the operating
        system's list. ``certificate`` (``VIRTCLOUD_CERTIFICATE``) contains the client's certificate and key, if SBF
        requires them.
        """
        address = url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
        trust = TlsTrust(
            ca_file or os.environ.get(CA_VARIABLE) or None, certificate or os.environ.get(CERTIFICATE_VARIABLE) or None
        )
        self.sbf = SbfClient(address, timeout, token=token_source(address, token, token_file), trust=trust)

    def __repr__(self) -> str:
        """Return a text with SBF's address, and without the token."""
        return f"<virtcloud.Client of {self.sbf.url}>"

    def __enter__(self) -> Self:
        """Return this client. The end of the context closes the client."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the connections."""
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.sbf.close()

    def create(
        self,
        /,
        key: str,
        spec: ClusterSpec | None = None,
        *,
        attempt: int | None = None,
        **keys: Any,  # noqa: ANN401
    ) -> "Cluster":
        """Create a cluster. SBF sets up the cluster after this call returns. Idempotent for the same key and spec.

        Pass either ``spec`` or the keys of a spec: ``create("demo", hosts=["brno-h1"])``. The default owner is the
        caller. Raise BadInput, NoSuchHost or NoSuchNetwork for an invalid spec. Raise Forbidden if the caller may not
        create the cluster. Raise Gone if ``attempt`` is outdated. Raise a subclass of Conflict, such as NoVlanFree or
        AttemptWaits, if SBF cannot create the cluster now.
        """
        wanted = self._spec(spec, keys)
        return Cluster(self.sbf, self.sbf.put_cluster(key, ClusterRequest(spec=wanted, attempt=attempt)))

    def _spec(self, spec: ClusterSpec | None, keys: Mapping[str, Any]) -> ClusterSpec:
        if spec is None:
            owner = keys.get("owner") or self.sbf.whoami().name
            return ClusterSpec(**{**keys, "owner": owner})
        if keys:
            raise BadInput(f"expected either a spec or its keys, got a spec and {', '.join(keys)}")
        return spec

    def preview(self, key: str, spec: ClusterSpec, *, attempt: int | None = None) -> ClusterDryRun:
        """Return the effect that :meth:`create` would have now: the VLAN IDs, and the change of each element.

        Raise the same errors as :meth:`create`.
        """
        return self.sbf.dry_run_cluster(key, ClusterRequest(spec=spec, attempt=attempt))

    def get(self, key: str) -> "Cluster":
        """Return a cluster, even if it has ended. Raise NotFound if no cluster ever had the key."""
        return Cluster(self.sbf, self.sbf.cluster(key))

    def list(
        self,
        owner: str | None = None,
        *,
        ended: bool = False,
        network: str | None = None,
        limit: int | None = None,
        before: str | None = None,
    ) -> "Sequence[Cluster]":
        """Return the running clusters of all owners, or only of ``owner``. The oldest cluster is first.

        ``network`` is the key or the name of a running cluster: return only the clusters of this cluster's network. If
        ``ended`` is true, return the newest ``limit`` (default 100) clusters, running or ended. If ``before`` is also
        set, return only clusters older than the cluster with the ID ``before``.
        """
        views = self.sbf.clusters(owner, ended=ended, network=network, limit=limit, before=before)
        return [Cluster(self.sbf, view) for view in views]

    def iterate(  # noqa: PLR0913 - callers pass each filter by its name
        self,
        owner: str | None = None,
        *,
        ended: bool = False,
        network: str | None = None,
        state: str | None = None,
        site: str | None = None,
        element: str | None = None,
        newest: bool = False,
        page_size: int = PAGE_SIZE,
    ) -> Iterator[Cluster]:
        """Yield the running clusters, the oldest cluster first. If ``ended`` is true, also yield ended clusters.

        If ``newest`` is true, yield the newest cluster first. ``owner``, ``network``, ``site`` and ``element`` limit
        the result. If ``state`` is set, yield only the clusters in this state, running or ended. The clusters are read
        in pages of at most ``page_size`` clusters during the iteration. Each cluster that exists during the whole
        iteration appears exactly once. Raise BadInput for an unknown site or element.
        """
        pages = self.sbf.cluster_pages(
            owner,
            ended=ended,
            network=network,
            state=state,
            site=site,
            element=element,
            newest=newest,
            size=page_size,
        )
        for page in pages:
            for view in page:
                yield Cluster(self.sbf, view)

    def delete(self, key: str, *, wait: bool = False, attempt: int | None = None) -> None:
        """Delete the cluster with this key. If ``wait`` is true, return when the cluster is removed everywhere.

        Idempotent. A key without a cluster is not an error. Raise Gone if SBF has a later attempt than ``attempt``.
        """
        try:
            cluster = Cluster(self.sbf, self.sbf.delete_cluster(key, attempt))
        except NotFound:
            return
        if wait:
            cluster.wait_ended()
