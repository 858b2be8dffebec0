"""Calls about guests: show, stop, start and reset them."""

from virtcloud.client.calls import SbfCalls
from virtcloud.model.guests import GuestPower, GuestPowerRequest, GuestView
from virtcloud.model.values import ClusterKey, Name


class GuestCalls(SbfCalls):
    """Calls about the guests of a cluster.

    A later cluster may have the same key. Therefore ``cluster_id`` identifies the intended cluster. If the cluster has
    ended, the calls raise Conflict.
    """

    def guests(self, key: str, cluster_id: str | None = None) -> list[GuestView]:
        """Return the guests of a cluster. Raise NotFound if no cluster ever had the key."""
        answer = self._connection.send("GET", f"/v1/clusters/{ClusterKey(key)}/guests", query={"id": cluster_id})
        return self._documents(GuestView, answer)

    def guest(
        self, key: str, guest: str, after: int | None = None, wait: float = 0, cluster_id: str | None = None
    ) -> GuestView:
        """Return a guest. Raise NotFound if the cluster or the guest is not known.

        With ``after``, wait until the guest's host has confirmed a later revision, but at most ``wait`` seconds.
        """
        query = {} if cluster_id is None else {"id": cluster_id}
        return self._document(GuestView, self._connection.poll(_path(key, guest), after, wait, query))

    def set_guest_power(
        self, key: str, guest: str, power: GuestPower, resets: int | None = None, cluster_id: str | None = None
    ) -> GuestView:
        """Stop or start a guest. With ``resets``, reset the guest unless it had this number of resets. Idempotent.

        Raise Conflict if the guest is stopped and would be reset, or if another caller reset the guest in between.
        """
        request = GuestPowerRequest(power=power, resets=resets)
        answer = self._connection.send("PUT", f"{_path(key, guest)}/power", request, query={"id": cluster_id})
        return self._document(GuestView, answer)


def _path(key: str, guest: str) -> str:
    return f"/v1/clusters/{ClusterKey(key)}/guests/{Name(guest)}"
