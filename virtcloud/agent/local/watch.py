"""One caller's wait for one cluster: asks SBF, and then the guests."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Protocol, Self

from virtcloud.agent import names
from virtcloud.agent.local import barrier
from virtcloud.agent.local.barrier import Standing, waiting
from virtcloud.agent.local.job import Job
from virtcloud.agent.local.probes import IP
from virtcloud.model.errors import Gone, NotFound, VirtcloudError
from virtcloud.model.values import Name
from virtcloud.model.views import ClusterView

POLL_S = 1.0
"""What is cancelled meanwhile is noticed after this long at most."""
LISTEN_S = 0.3
"""So long guests have to answer one who does not wait at all."""


class Clusters(Protocol):
    """What is asked of SBF."""

    def cluster(self, key: str, after: int | None = None, wait: float = 0) -> ClusterView:
        """Give a cluster; a long poll."""

    def delete_cluster(self, key: str, attempt: int | None = None, owner: str | None = None) -> ClusterView:
        """End an owner's attempt; may be repeated."""


class Ear(Protocol):
    """What is asked of the bridge."""

    def ask(self, addresses: frozenset[IP], seconds: float) -> frozenset[IP]:
        """Give those that answer; returns when all did, or ``seconds`` are over."""


MakeEar = Callable[[str], AbstractContextManager[Ear]]
"""Listens on the bridge of that name; raises Refused when there is none."""


class Watch:
    """Remembers, as long as a caller waits, what SBF said last and which guests were heard."""

    def __init__(self, element: Name, sbf: Clusters, make_ear: MakeEar, pause: Callable[[float], object]) -> None:
        """Look from the host ``element``; ``pause`` waits some seconds where there is nobody to wait for."""
        self._element = element
        self._sbf = sbf
        self._make_ear = make_ear
        self._pause = pause
        self._held = ExitStack()
        self._ear: Ear | None = None
        self._answered: frozenset[IP] = frozenset()
        self.view: ClusterView | None = None

    def __enter__(self) -> Self:
        """Use it as a context."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stop listening."""
        self._held.close()

    @property
    def site(self) -> Name | None:
        """The site of this host, where it has a part of the cluster."""
        return self._site(self.view) if self.view else None

    def _site(self, view: ClusterView) -> Name | None:
        part = barrier.part_of(view, self._element)
        return part.site if part else None

    def look(self, job: Job, seconds: float) -> Standing:
        """Say how far it is, as soon as there is news and after ``seconds`` (a second at most); raises Gone."""
        ends = time.monotonic() + min(seconds, POLL_S)
        try:
            return self._look(job, ends)
        except Gone:
            raise
        except NotFound:
            found = waiting(f"SBF knows no cluster {job.cluster} with a part on host {self._element}")
        except VirtcloudError as error:
            found = waiting(str(error))
        self._pause(max(0, ends - time.monotonic()))
        return found

    def _look(self, job: Job, ends: float) -> Standing:
        view = self._ask_sbf(job, max(0, ends - time.monotonic()))
        if job.is_not_of(view.spec.owner):
            raise Gone(f"cluster {job.cluster}: SBF has another user's under this key, not that of {job.user}")
        if barrier.is_active(view, job.attempt):
            site = self._site(view)
            if site is None:
                return waiting(f"host {self._element} has no part of cluster {job.cluster}")
            self._ask_guests(view, view.vlans[site], max(LISTEN_S, ends - time.monotonic()))
        return barrier.of_view(view, job.attempt, self._answered)

    def _ask_sbf(self, job: Job, seconds: float) -> ClusterView:
        """Ask for news; once it is active there are guests to be asked instead of waiting for it."""
        before = self.view
        if before is None:
            view = self._sbf.cluster(job.cluster)
        else:
            guests = barrier.is_active(before, job.attempt) and self.site is not None
            view = self._sbf.cluster(job.cluster, after=before.version, wait=0 if guests else seconds)
            if view.id != before.id:
                self._forget()
        self.view = view
        return view

    def _forget(self) -> None:
        """Take nothing for granted of another cluster with the same key."""
        self._held.close()
        self._ear, self._answered = None, frozenset()

    def _ask_guests(self, view: ClusterView, vlan: int, seconds: float) -> None:
        silent = barrier.silent_guests(view, self._answered)
        if not silent:
            return
        if self._ear is None:
            self._ear = self._held.enter_context(self._make_ear(names.bridge(vlan)))
        wanted = frozenset(address for guest in silent for address in barrier.addresses(guest))
        self._answered |= self._ear.ask(wanted, seconds)
