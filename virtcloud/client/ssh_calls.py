"""Calls about SSH access to guests through gateways."""

from virtcloud.client.calls import SbfCalls, flag_query
from virtcloud.model.ssh_access import SshAccessView, SshCertificateRequest, SshCertificateView
from virtcloud.model.ssh_connections import SshCertificateEntry, SshConnectionView
from virtcloud.model.values import ClusterKey


class SshCalls(SbfCalls):
    """Calls about SSH access through gateways. Calls about a cluster raise NotFound if the cluster is unknown."""

    def ssh_access(self, key: str, cluster_id: str | None = None) -> SshAccessView:
        """Return the gateways through which the caller reaches the guests. Raise NoSuchCall if SBF is too old."""
        return self._document(SshAccessView, self._connection.send("GET", _path(key), query={"id": cluster_id}))

    def create_ssh_certificate(
        self, key: str, request: SshCertificateRequest, cluster_id: str | None = None
    ) -> SshCertificateView:
        """Create a certificate for the caller. The first certificate of a cluster connects the cluster to gateways.

        Raise NoGateway if no gateway of the cluster offers SSH. Raise NoAddressFree if no such gateway gets an address
        in the network. Raise Forbidden if the caller neither owns the cluster nor is invited.
        """
        answer = self._connection.send("POST", f"{_path(key)}/certificates", request, query={"id": cluster_id})
        return self._document(SshCertificateView, answer)

    def ssh_certificates(self, key: str, *, ended: bool = False) -> list[SshCertificateEntry]:
        """Return the certificates of a cluster.

        If ``ended`` is false, omit revoked certificates, and expired certificates without open connections. If
        ``ended`` is true, also return such certificates, as long as SBF has their records. SBF keeps the record of an
        expired certificate for at least an hour.
        """
        answer = self._connection.send("GET", f"{_path(key)}/certificates", query=flag_query(ended=ended))
        return self._documents(SshCertificateEntry, answer)

    def revoke_ssh_certificate(self, key: str, serial: int) -> SshCertificateEntry:
        """Revoke a certificate. Idempotent. Raise NotFound if the cluster has no such certificate."""
        return self._document(
            SshCertificateEntry, self._connection.send("DELETE", f"{_path(key)}/certificates/{serial}")
        )

    def ssh_connections(self, key: str) -> list[SshConnectionView]:
        """Return the open connections to a cluster's guests, as the gateways last reported them."""
        return self._documents(SshConnectionView, self._connection.send("GET", f"{_path(key)}/connections"))


def _path(key: str) -> str:
    return f"/v1/clusters/{ClusterKey(key)}/ssh"
