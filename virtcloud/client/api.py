"""The Python API: virtual clusters, created, watched and deleted.

::

    from virtcloud import Client

    with Client() as client:
        cluster = client.create("demo", hosts=["brno-h1", "praha-h1"])
        cluster.wait_active(progress=lambda view: print(view.state))
        print(cluster.vlans)
        more = client.create("more", joins="demo", hosts=["plzen-h1"])  # comes and goes
        more.wait_active().delete(wait=True)
        cluster.delete(wait=True)
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from virtcloud.client.connection import TlsTrust
from virtcloud.client.credentials import CA_VARIABLE, CERTIFICATE_VARIABLE, token_source
from virtcloud.client.sbf import DEFAULT_URL, SbfClient
from virtcloud.model.changes import ClusterDryRun
from virtcloud.model.cluster import ENDED_STATES, LEAVING_STATES, ClusterRequest, ClusterSpec, ClusterState
from virtcloud.model.errors import BadInput, ClusterFailed, Gone, NotFound, ServiceUnreachable, TimedOut
from virtcloud.model.values import Name, VlanId
from virtcloud.model.views import ClusterView

ProgressCallback = Callable[[ClusterView], None]
POLL_S = 1.0
PATIENCE_S = 30.0
URL_VARIABLE = "VIRTCLOUD_URL"


class Client:
    """The virtual clusters of one installation, at ``url`` (see :class:`SbfClient`) or where ``VIRTCLOUD_URL`` says."""

    def __init__(  # noqa: PLR0913 - each is given by its name
        self,
        url: str | None = None,
        timeout: float = 10.0,
        *,
        token: str | None = None,
        token_file: str | Path | None = None,
        ca_file: str | Path | None = None,
        certificate: str | Path | None = None,
    ) -> None:
        """Prepare; nothing is sent yet. ``timeout`` is in seconds, of one call.

        Without a token or its file, ``virtcloud.client.credentials`` finds it. ``ca_file`` has the
        certificates of the authority to believe (``VIRTCLOUD_CA_FILE``), else this machine's are; ``certificate`` has
        one to show and its key (``VIRTCLOUD_CERTIFICATE``), where SBF wants one.
        """
        where = url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
        trust = TlsTrust(
            ca_file or os.environ.get(CA_VARIABLE) or None, certificate or os.environ.get(CERTIFICATE_VARIABLE) or None
        )
        self.sbf = SbfClient(where, timeout, token=token_source(where, token, token_file), trust=trust)

    def __repr__(self) -> str:
        """Show where it calls; never the token."""
        return f"<virtcloud.Client of {self.sbf.url}>"

    def __enter__(self) -> Self:
        """Use it as a context."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.sbf.close()

    def create(
        self,
        key: str,
        spec: ClusterSpec | None = None,
        *,
        attempt: int | None = None,
        **keys: Any,  # noqa: ANN401
    ) -> "Cluster":
        """Create a cluster; it is being set up when this returns. The same key and spec again is the same cluster.

        Instead of ``spec`` its keys can be given: ``create("demo", hosts=["brno-h1"])``. The owner is then, unless
        given, the user whom SBF sees for the caller's token. Raise BadInput, Conflict (its kinds say what about:
        NameTaken, NoVlanFree, VlanNotInPool, HostNotLinked, QuotaExceeded, AttemptWaits), Gone (an older attempt),
        NoSuchHost.
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
        """Say what :meth:`create` would do now: the number, and the change of each element. Raises the same."""
        return self.sbf.dry_run_cluster(key, ClusterRequest(spec=spec, attempt=attempt))

    def get(self, key: str) -> "Cluster":
        """Give a cluster, also one that has ended; raises NotFound."""
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
        """Give the clusters, of one owner if given, the ended ones too if asked; or the one of a name or key.

        With ``ended`` it is the newest ``limit`` of them (100), of those older than the one with the id ``before``.
        """
        found = self.sbf.clusters(owner, ended=ended, network=network, limit=limit, before=before)
        return [Cluster(self.sbf, view) for view in found]

    def delete(self, key: str, *, wait: bool = False, attempt: int | None = None) -> None:
        """End the cluster that stands under a key now, and wait until it is gone if asked.

        One that never was, or is gone, is no error. Raises Gone when a later ``attempt`` stands there.
        """
        try:
            going = Cluster(self.sbf, self.sbf.delete_cluster(key, attempt))
        except NotFound:
            return
        if wait:
            going.wait_ended()


class Cluster:
    """A cluster as it was last seen. As a context it is deleted, and gone, at the end.

    Waiting asks SBF with long polls, and outlasts its being away for half a minute.
    """

    def __init__(self, sbf: SbfClient, view: ClusterView, clock: Callable[[], float] = time.monotonic) -> None:
        """Wrap a view; ``clock`` counts seconds."""
        self._sbf = sbf
        self._clock = clock
        self.view = view

    def __repr__(self) -> str:
        """Show the cluster as it was last seen."""
        return f"<virtcloud.Cluster {self.key} of {self.view.spec.owner}: {self.state}, {self._numbers()}>"

    def _numbers(self) -> str:
        return ", ".join(f"VLAN {vlan} at {site}" for site, vlan in sorted(self.vlans.items())) or "no VLAN"

    def __enter__(self) -> Self:
        """Use it as a context."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Delete it and wait until it is gone."""
        self.delete(wait=True)

    @property
    def key(self) -> str:
        """The caller's name for it."""
        return self.view.key

    @property
    def state(self) -> ClusterState:
        """Where it is in its life."""
        return self.view.state

    @property
    def vlans(self) -> dict[Name, VlanId]:
        """Its VLAN number at each site."""
        return self.view.vlans

    def refresh(self) -> ClusterView:
        """Look again."""
        self.view = self._same(self._sbf.cluster(self.key, cluster_id=self.view.id))
        return self.view

    def wait_active(self, progress: ProgressCallback | None = None, timeout: float | None = None) -> Self:
        """Wait until it is active; calls ``progress`` with each new view, and at least every second.

        Raises :class:`ClusterFailed` with the reason when it will not be, :class:`TimedOut` after ``timeout`` seconds.
        """
        view = self._wait(frozenset({ClusterState.ACTIVE}) | LEAVING_STATES | ENDED_STATES, progress, timeout, "active")
        if view.state == ClusterState.FAILING:
            view = self._wait(ENDED_STATES, progress, timeout, "rid of what it had")
        if view.state != ClusterState.ACTIVE:
            raise ClusterFailed(f"cluster {self.key} is {view.state}: {view.reason or 'it was deleted'}")
        return self

    def wait_ended(self, progress: ProgressCallback | None = None, timeout: float | None = None) -> Self:
        """Wait until nothing of it is left anywhere; ``progress``, ``timeout`` as for :meth:`wait_active`."""
        self._wait(ENDED_STATES, progress, timeout, "gone")
        return self

    def extend(self, seconds: float) -> Self:
        """Extend its lease to at least ``seconds`` from now; never shortens it.

        Raises Conflict at its end, Gone when it is over and its key stands for another one.
        """
        self.view = self._sbf.extend_lease(self.key, seconds, *self._fence)
        return self

    def share(self, *users: str) -> Self:
        """Allow clusters of these users to join this cluster's network from now on. Idempotent."""
        return self._share(users, shared=True)

    def unshare(self, *users: str) -> Self:
        """Forbid new clusters of these users to join; those that joined stay until they end. Idempotent."""
        return self._share(users, shared=False)

    def _share(self, users: Sequence[str], *, shared: bool) -> Self:
        for user in users:
            self.view = self._sbf.share_network(self.key, user, shared=shared, cluster_id=self.view.id)
        return self

    def delete(
        self, *, wait: bool = False, progress: ProgressCallback | None = None, timeout: float | None = None
    ) -> Self:
        """End it; may be repeated. With ``wait``, return when nothing of it is left anywhere.

        It is this cluster that ends, never a later one under its key: that one exists only since this one is gone.
        """
        try:
            self.view = self._sbf.delete_cluster(self.key, *self._fence)
        except Gone:
            self.refresh()
        return self.wait_ended(progress, timeout) if wait else self

    @property
    def _fence(self) -> tuple[int, str, str]:
        """What a call about this cluster names: by attempt and owner an older SBF fences, too."""
        return self.view.attempt, self.view.spec.owner, self.view.id

    def _wait(
        self, until: frozenset[ClusterState], progress: ProgressCallback | None, timeout: float | None, goal: str
    ) -> ClusterView:
        ends = None if timeout is None else self._clock() + timeout
        answered = self._clock()
        while True:
            if progress:
                progress(self.view)
            if self.view.state in until:
                return self.view
            if ends is not None and self._clock() >= ends:
                raise TimedOut(f"cluster {self.key} is {self.view.state} after {timeout:g} s, not {goal}; it goes on")
            answered = self._poll(answered)

    def _poll(self, answered: float) -> float:
        """Wait a moment for a newer view; give when SBF last answered."""
        try:
            view = self._sbf.cluster(self.key, self.view.version, POLL_S, self.view.id)
        except ServiceUnreachable:
            if self._clock() - answered > PATIENCE_S:
                raise
            time.sleep(POLL_S)
            return answered
        self.view = self._same(view)
        return self._clock()

    def _same(self, view: ClusterView) -> ClusterView:
        """Return a view of this cluster; an SBF that does not look by ids may return a later one of its key."""
        if view.id != self.view.id:
            raise ClusterFailed(
                f"cluster {self.key} has ended, and another one has its key now (attempt {view.attempt})"
            )
        return view
