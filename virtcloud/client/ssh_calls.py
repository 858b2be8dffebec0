"""Calls about SSH access to guests through gateways."""

from virtcloud.client.calls import SbfCalls
from virtcloud.model.ssh_access import SshAccessView, SshCertificateRequest, SshCertificateView
from virtcloud.model.values import ClusterKey


class SshCalls(SbfCalls):
    """Calls about SSH access through gateways."""

    def ssh_access(self, key: str, cluster_id: str | None = None) -> SshAccessView:
        """Return the gateways through which the caller reaches a cluster's guests. Raise NotFound for an unknown key.

        An SBF of an earlier version also raises NotFound.
        """
        return self._document(SshAccessView, self._connection.send("GET", _path(key), query={"id": cluster_id}))

    def create_ssh_certificate(
        self, key: str, request: SshCertificateRequest, cluster_id: str | None = None
    ) -> SshCertificateView:
        """Create a certificate for the caller. The first one connects the cluster to gateways.

        Raise NotFound for an unknown cluster. Raise NoGateway if no gateway of the cluster offers SSH. Raise Forbidden
        unless the caller owns the cluster or is invited.
        """
        answer = self._connection.send("POST", f"{_path(key)}/certificates", request, query={"id": cluster_id})
        return self._document(SshCertificateView, answer)


def _path(key: str) -> str:
    return f"/v1/clusters/{ClusterKey(key)}/ssh"
