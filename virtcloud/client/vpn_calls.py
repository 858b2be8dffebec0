"""Calls about VPN access to clusters: profiles, connections and invitations."""

from urllib.parse import quote

from virtcloud.client.calls import SbfCalls, flag_query
from virtcloud.client.connection import LONGEST_WAIT_S
from virtcloud.model.values import ClusterKey, UserName
from virtcloud.model.vpn import (
    AuthorityRenewal,
    NewVpnProfile,
    VpnConnectionView,
    VpnInvitation,
    VpnProfileRequest,
    VpnProfileView,
)


class VpnCalls(SbfCalls):
    """Calls about VPN access. Users who are invited to a cluster see and change only their own profiles."""

    def create_profile(self, key: str, request: VpnProfileRequest) -> NewVpnProfile:
        """Create a profile for a device. Not idempotent: each call revokes the device's previous profile.

        Raise NotFound for an unknown cluster. Raise NoGateway if no gateway can connect users to the cluster. Raise
        Conflict if the cluster is ending.
        """
        return self._document(NewVpnProfile, self._connection.send("POST", f"{_path(key)}/profiles", request))

    def profiles(self, key: str, *, revoked: bool = False) -> list[VpnProfileView]:
        """Return the valid profiles of a cluster. If ``revoked`` is true, also return revoked profiles."""
        answer = self._connection.send("GET", f"{_path(key)}/profiles", query=flag_query(revoked=revoked))
        return self._documents(VpnProfileView, answer)

    def profile(self, key: str, profile: str, wait: float = 0) -> VpnProfileView:
        """Return a profile. Raise NotFound if the cluster has no such profile.

        If elements have not confirmed the profile, wait up to ``wait`` seconds, at most 60, for a change of the list of
        these elements. An SBF of an earlier version does not wait.
        """
        wait = min(wait, LONGEST_WAIT_S)
        query = {"wait": wait} if wait else None
        return self._document(
            VpnProfileView, self._connection.send("GET", _profile_path(key, profile), query=query, wait=wait)
        )

    def revoke_profile(self, key: str, profile: str) -> VpnProfileView:
        """Revoke a profile. Idempotent. Raise NotFound if the cluster has no such profile."""
        return self._document(VpnProfileView, self._connection.send("DELETE", _profile_path(key, profile)))

    def vpn_connections(self, key: str) -> list[VpnConnectionView]:
        """Return the devices that are connected to a cluster, as the gateways reported them."""
        return self._documents(VpnConnectionView, self._connection.send("GET", f"{_path(key)}/connections"))

    def invitations(self, key: str) -> list[VpnInvitation]:
        """Return the users who are invited to a cluster."""
        return self._documents(VpnInvitation, self._connection.send("GET", f"{_path(key)}/invitations"))

    def invite_user(self, key: str, user: str) -> VpnInvitation:
        """Allow a user to create profiles and SSH certificates for a cluster. Idempotent.

        Raise Conflict if the cluster is ending.
        """
        answer = self._connection.send("PUT", f"{_path(key)}/invitations/{UserName(user)}")
        return self._document(VpnInvitation, answer)

    def withdraw_invitation(self, key: str, user: str) -> list[VpnProfileView]:
        """Withdraw an invitation, and revoke the user's profiles and SSH certificates for the cluster. Idempotent.

        Return the profiles that this call revoked.
        """
        answer = self._connection.send("DELETE", f"{_path(key)}/invitations/{UserName(user)}")
        return self._documents(VpnProfileView, answer)

    def renew_authority(self) -> AuthorityRenewal:
        """Replace the certificate authority, and revoke all profiles and SSH certificates of all clusters.

        Only operators may make this call.
        """
        return self._document(AuthorityRenewal, self._connection.send("POST", "/v1/vpn/authority/renew"))


def _path(key: str) -> str:
    return f"/v1/clusters/{ClusterKey(key)}/vpn"


def _profile_path(key: str, profile: str) -> str:
    return f"{_path(key)}/profiles/{quote(profile, safe='')}"
