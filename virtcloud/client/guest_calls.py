"""Calls about guests: show, stop, start, reset, reach and clone them."""

from virtcloud.client.calls import SbfCalls
from virtcloud.client.session_stream import SessionStream
from virtcloud.model.guest_sessions import SessionRequest
from virtcloud.model.guests import GuestPower, GuestPowerRequest, GuestView
from virtcloud.model.values import ClusterKey, Name

AGENT_S = 60.0
"""Additional timeout, in seconds, of a call that opens a session.

SBF waits until the agent of the guest's host connects.
"""


class GuestCalls(SbfCalls):
    """Calls about the guests of a cluster.

    The calls raise NotFound if SBF has no such cluster or guest, and Conflict if the cluster has ended or is ending.

    ``cluster_id`` is the ID of the intended cluster; None means the newest cluster with the key.
    """

    def guests(self, key: str, cluster_id: str | None = None) -> list[GuestView]:
        """Return the guests of a cluster."""
        answer = self._connection.send("GET", f"/v1/clusters/{ClusterKey(key)}/guests", query={"id": cluster_id})
        return self._documents(GuestView, answer)

    def guest(
        self, key: str, guest: str, after: int | None = None, wait: float = 0, cluster_id: str | None = None
    ) -> GuestView:
        """Return a guest.

        With ``after``, SBF answers when the guest's host has confirmed a revision above ``after``, or after ``wait``
        seconds (at most 60). Without ``after``, SBF answers immediately.
        """
        query = {} if cluster_id is None else {"id": cluster_id}
        return self._document(GuestView, self._connection.poll(_path(key, guest), after, wait, query))

    def set_guest_power(
        self, key: str, guest: str, power: GuestPower, resets: int | None = None, cluster_id: str | None = None
    ) -> GuestView:
        """Stop or start a guest. Idempotent.

        To reset the guest, pass ``resets``: one more than the number of resets in the guest's view. A repeated call
        with the same ``resets`` changes nothing. Raise Conflict for a reset of a stopped guest. Also raise Conflict if
        other callers have reset the guest since this caller read the view: SBF's number of resets is then neither
        ``resets`` nor ``resets`` - 1.
        """
        request = GuestPowerRequest(power=power, resets=resets)
        answer = self._connection.send("PUT", f"{_path(key, guest)}/power", request, query={"id": cluster_id})
        return self._document(GuestView, answer)

    def open_session(
        self, key: str, guest: str, request: SessionRequest, cluster_id: str | None = None
    ) -> SessionStream:
        """Open a session with a guest.

        Raise Refused if the guest's host cannot connect the session, and Unreachable if the host's agent does not
        connect.
        """
        query = {
            "kind": request.kind,
            "port": request.port,
            "follow": "true" if request.follow else None,
            "image": request.image,
            "id": cluster_id,
        }
        return self._connection.open_stream(f"{_path(key, guest)}/session", query, AGENT_S)


def _path(key: str, guest: str) -> str:
    return f"/v1/clusters/{ClusterKey(key)}/guests/{Name(guest)}"
