"""A virtual cluster as an object of the Python API, with methods that wait for a state."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from virtcloud.client.events import ClusterEvent, find_events
from virtcloud.client.fan_out import DEFAULT_JOBS, ShowFanOut
from virtcloud.client.guest_commands import GuestResult, find_batch_logins, make_command, require_success, run_collected
from virtcloud.client.guest_copies import get_files, list_sources, put_files
from virtcloud.client.guests import ClusterGuests
from virtcloud.client.ssh_arguments import DEFAULT_OPTIONS, SshOptions, open_logins
from virtcloud.client.waiting import POLL_S, PolledCluster, ShownProgress, open_progress
from virtcloud.model.cluster import ENDED_STATES, ClusterState
from virtcloud.model.errors import BadInput, ClusterFailed, Gone
from virtcloud.model.guest_seed import render_known_hosts
from virtcloud.model.path_check import ClusterVerification
from virtcloud.model.traffic import ElementTraffic
from virtcloud.model.values import Name, VlanId
from virtcloud.model.views import ClusterView


class Cluster(PolledCluster):
    """A cluster. The end of a ``with`` block deletes the cluster and waits until the cluster is removed.

    ``view`` is the last answer of SBF. Waiting methods use long polls, and tolerate an unreachable SBF for 30 seconds.
    """

    def __repr__(self) -> str:
        """Return the key, owner, state and VLAN IDs of the last view as text."""
        return f"<virtcloud.Cluster {self.key} of {self.view.spec.owner}: {self.state}, {self._format_vlans()}>"

    def _format_vlans(self) -> str:
        return ", ".join(f"VLAN {vlan} at {site}" for site, vlan in sorted(self.vlans.items())) or "no VLAN"

    def __enter__(self) -> Self:
        """Return this cluster. The end of the context deletes the cluster."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Delete the cluster and wait until it is removed everywhere."""
        self.delete(wait=True)

    @property
    def key(self) -> str:
        """The idempotency key of the cluster."""
        return self.view.key

    @property
    def state(self) -> ClusterState:
        """The state in the lifecycle."""
        return self.view.state

    @property
    def vlans(self) -> dict[Name, VlanId]:
        """The VLAN ID at each site."""
        return self.view.vlans

    @property
    def guests(self) -> ClusterGuests:
        """The cluster's guests, by name."""
        return ClusterGuests(self._sbf, self.key, self.view.id)

    def refresh(self) -> ClusterView:
        """Read the cluster again."""
        self.view = self._check_id(self._sbf.cluster(self.key, cluster_id=self.view.id))
        return self.view

    def wait_active(self, progress: ShownProgress = None, timeout: float | None = None) -> Self:
        """Wait until the cluster is active. Call ``progress`` with each new view.

        While SBF answers, call ``progress`` at least every second. With ``progress=True``, show a progress bar in a
        terminal or notebook. Raise ClusterFailed with the reason if the cluster fails or ends. Raise TimedOut after
        ``timeout`` seconds.
        """
        with open_progress(progress) as shown:
            until = frozenset({ClusterState.ACTIVE, ClusterState.DRAINING}) | ENDED_STATES
            view = self._wait(until, shown, timeout, "active")
        if view.state != ClusterState.ACTIVE:
            raise ClusterFailed(f"cluster {self.key} is {view.state}: {view.reason or 'it was deleted'}")
        return self

    def wait_ended(self, progress: ShownProgress = None, timeout: float | None = None) -> Self:
        """Wait until the cluster is removed everywhere. ``progress`` and ``timeout`` are as in :meth:`wait_active`."""
        with open_progress(progress) as shown:
            self._wait(ENDED_STATES, shown, timeout, "released")
        return self

    def verify(self) -> ClusterVerification:
        """Send packets of the cluster's MTU between all pairs of the cluster's hosts. Return the result of each pair.

        The guests are not involved. Raise Conflict unless the cluster is active or degraded. Also raise Conflict for
        too many hosts.
        """
        return self._sbf.verify_cluster(self.key, self.view.id)

    def traffic(self) -> list[ElementTraffic]:
        """Return the traffic of the cluster's network at each host and gateway in the last 15 minutes."""
        return self._sbf.traffic(self.key, self.view.id)

    def known_hosts(self) -> str:
        """Return the host keys of all guests of the cluster's network, as lines for a file ``known_hosts``.

        Raise Conflict if the cluster is ending or has ended.
        """
        return render_known_hosts(self._sbf.peers(self.key, self.view.id).peers)

    def run(  # noqa: PLR0913 - callers pass each argument by its name
        self,
        command: str | Sequence[str],
        *,
        guests: Sequence[str] | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        wait: float = 0,
        jobs: int = DEFAULT_JOBS,
        check: bool = False,
        options: SshOptions = DEFAULT_OPTIONS,
        progress: ShowFanOut | None = None,
    ) -> dict[str, GuestResult]:
        """Run a command on all guests, or on ``guests``, at the same time over ssh. Return results by guest.

        A string is a line for the guest's shell. A sequence contains a program and its arguments. ``stdin`` is the
        standard input of each command. A command is ended after ``timeout`` seconds. If a guest does not accept logins
        yet, the login is repeated for up to ``wait`` seconds. At most ``jobs`` commands run at the same time.

        If a command fails or a guest cannot be reached, the guest's result contains the error. If ``check`` is true,
        raise GuestsFailed for such results. Raise NotFound for an unknown guest, and BadInput for empty ``guests``.
        """
        made = make_command(command, stdin)
        with open_logins(self._sbf, self.key, self.view.id) as logins:
            results = run_collected(logins, options, _require_names(guests), made, jobs, timeout, progress, wait)
        if check:
            require_success(results)
        return results

    def put(  # noqa: PLR0913 - callers pass each argument by its name
        self,
        local: str | Path | Sequence[str | Path],
        remote: str = "",
        *,
        guests: Sequence[str] | None = None,
        timeout: float | None = None,
        jobs: int = DEFAULT_JOBS,
        options: SshOptions = DEFAULT_OPTIONS,
        progress: ShowFanOut | None = None,
    ) -> None:
        """Copy files or folders to all guests, or to ``guests``. The other arguments are those of `run`.

        ``remote`` is a folder in each guest. If only one file or folder is copied, ``remote`` can also be the new name
        of this file or folder. The default is the home folder of the user in the guest. Raise GuestsFailed if the copy
        failed on any guest; no incomplete file remains. Raise BadInput for a local file that does not exist.
        """
        sources = list_sources([local] if isinstance(local, str | Path) else local)
        with open_logins(self._sbf, self.key, self.view.id) as logins:
            put_files(
                find_batch_logins(logins, options, _require_names(guests)), sources, remote, jobs, timeout, progress
            )

    def get(  # noqa: PLR0913 - callers pass each argument by its name
        self,
        remote: str | Sequence[str],
        local: str | Path = ".",
        *,
        guests: Sequence[str] | None = None,
        timeout: float | None = None,
        jobs: int = DEFAULT_JOBS,
        options: SshOptions = DEFAULT_OPTIONS,
        progress: ShowFanOut | None = None,
    ) -> dict[str, Path]:
        """Copy files or folders from all guests, or from ``guests``. Return the local folder of each guest.

        The files of guest g1 are copied into the folder ``local/g1``. ``remote`` are paths or patterns such as
        ``*.log``. The other arguments are those of `run`. Raise GuestsFailed if the copy failed on any guest; no
        incomplete file remains.
        """
        paths = [remote] if isinstance(remote, str) else remote
        with open_logins(self._sbf, self.key, self.view.id) as logins:
            found = find_batch_logins(logins, options, _require_names(guests))
            get_files(found, dict.fromkeys(found, paths), Path(local), jobs, timeout, progress)
        return {name: Path(local) / name for name in found}

    def events(self, timeout: float | None = None) -> Iterator[ClusterEvent]:
        """Yield the present state and progress, and later each change.

        End when the cluster ends, or after ``timeout`` seconds. Events report the state, the lease, the VLAN IDs and
        the elements' progress. A value that changes twice within one long poll results in one event.
        """
        before = None
        for view in self.poll_views(timeout):
            yield from find_events(before, view)
            before = view

    def poll_views(self, timeout: float | None = None, poll_s: float = POLL_S) -> Iterator[ClusterView]:
        """Yield the cluster's view now, and again at each change or after ``poll_s`` seconds without a change.

        End after the view of the ended cluster, or after ``timeout`` seconds. Raise ServiceUnreachable if SBF does not
        answer for 30 seconds.
        """
        return self._poll_views(timeout, poll_s)

    def extend(self, seconds: float) -> Self:
        """Extend the lease to at least ``seconds`` from now; never shorten the lease.

        Raise QuotaExceeded if the owner's quota forbids the lease. Raise Conflict if the cluster is ending or has
        ended. Raise Gone if another cluster has this cluster's key.
        """
        self.view = self._sbf.extend_lease(self.key, seconds, *self._fence)
        return self

    def share(self, *users: str) -> Self:
        """Allow clusters of these users to join this cluster's network. Idempotent.

        Raise Conflict if this cluster is a member of another network, is ending or has ended. Raise BeyondLimit for too
        many users. After an error, some of the users may already be allowed.
        """
        return self._share(users, shared=True)

    def unshare(self, *users: str) -> Self:
        """Forbid new clusters of these users to join this cluster's network. Existing members remain. Idempotent.

        Raise Conflict if this cluster is a member of another network, is ending or has ended.
        """
        return self._share(users, shared=False)

    def _share(self, users: Sequence[str], *, shared: bool) -> Self:
        for user in users:
            self.view = self._sbf.share_network(self.key, user, shared=shared, cluster_id=self.view.id)
        return self

    def delete(self, *, wait: bool = False, progress: ShownProgress = None, timeout: float | None = None) -> Self:
        """Delete the cluster. Idempotent. This method never deletes a later cluster with the same key.

        If ``wait`` is true, return when the cluster is removed everywhere. If ``wait`` is false, return when SBF has
        begun the removal.
        """
        try:
            self.view = self._sbf.delete_cluster(self.key, *self._fence)
        except Gone:
            self.refresh()
        return self.wait_ended(progress, timeout) if wait else self

    @property
    def _fence(self) -> tuple[int, str, str]:
        """The attempt, owner and ID of this cluster.

        SBF refuses a call with these values if another cluster has the key now. Earlier versions of SBF ignore the ID.
        """
        return self.view.attempt, self.view.spec.owner, self.view.id


def _require_names(guests: Sequence[str] | None) -> Sequence[str]:
    if guests is not None and not guests:
        raise BadInput("guests: expected names of guests, got none; for all guests, pass None")
    return guests or ()
