"""The reports of an agent to SBF about its host: confirmations, errors and drift."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from virtcloud import __version__
from virtcloud.agent import log
from virtcloud.agent.host_conclusions import format_steps, map_cluster_keys
from virtcloud.agent.step_application import ClusterErrors
from virtcloud.agent.steps import Step
from virtcloud.model.errors import AnswerUnreadable, BadInput, VirtcloudError
from virtcloud.model.views import Confirmation
from virtcloud.model.wanted import WantedDocument

MAX_REFUSALS = 3
"""After this number of refusals in a row, the agent reports a cluster as refused.

After fewer refusals, the cause may be temporary.
"""


class ElementApi(Protocol):
    """The calls to SBF that the reconciler needs."""

    def wanted(self, element: str, after: int | None = None, wait: float = 0) -> WantedDocument:
        """Wait at most ``wait`` seconds for a revision later than ``after``. Return the wanted document."""

    def confirm(self, element: str, confirmation: Confirmation) -> None:
        """Confirm that the element has the wanted state of a revision, except for some clusters.

        Raise BadInput if SBF does not support a key of the confirmation.
        """

    def report_error(
        self,
        element: str,
        revision: int,
        message: str,
        refused: Mapping[str, str] | None = None,
        clusters: Mapping[str, str] | None = None,
    ) -> None:
        """Report why the element does not have the wanted state of ``revision``.

        `virtcloud.model.views.ElementErrorReport` describes the arguments.
        """

    def report_drift(self, element: str, revision: int) -> None:
        """Report that the element differs from ``revision``, which it had confirmed."""


class HostReports:
    """The reports of one host. The agent omits a confirmation if SBF already has the same information."""

    def __init__(self, element: str, sbf: ElementApi) -> None:
        """Create the reports of the host ``element`` to ``sbf``."""
        self._element = element
        self._sbf = sbf
        self.exceptions: ClusterErrors = {}
        """The clusters that the latest confirmation excepted: pending clusters, clusters with guests that could not be
        started, and clusters whose removal failed.
        """
        self._refused = frozenset[str]()
        """The clusters that `report_refusals` reported and that the host still refuses."""
        self._may_be_in_error = True
        """Whether SBF may have an error report of this host, which a confirmation would delete.

        The value is True at the start, because an earlier agent process may have sent an error report.
        """

    def confirm(self, document: WantedDocument, confirmation: Confirmation, *, drifted: bool) -> bool:
        """Send a confirmation of the document's revision.

        If the confirmation has the key ``remaining`` or ``unstopped_guests``, and SBF does not support the key, return
        False without a confirmation: with a confirmation, SBF would regard the clusters as removed, or the guests as
        stopped. Confirm a confirmed revision again only in these cases:

        * The host had drifted.
        * `exceptions` changed, or differ from SBF's record.
        * SBF may have an outdated error report.
        """
        pending, remaining = confirmation.incomplete or {}, confirmation.remaining or {}
        exceptions = join_reasons(remaining, pending)
        is_complete = document.confirmed_revision >= document.revision and not drifted
        is_recorded = set(pending) <= set(document.incomplete) and bool(exceptions) >= bool(document.incomplete)
        if is_complete and is_recorded and exceptions == self.exceptions and not self._may_be_in_error:
            return True
        try:
            self._send_confirmation(confirmation)
        except BadInput as error:
            if not (remaining or confirmation.unstopped_guests):
                raise
            log.warning("exceptions_unknown_to_sbf", element=self._element, error=error)
            return False
        self.exceptions, self._may_be_in_error = exceptions, False
        logged = {"except_clusters": "; ".join(exceptions.values())} if exceptions else {}
        log.info("confirmed", element=self._element, revision=document.revision, **logged)
        return True

    def _send_confirmation(self, confirmation: Confirmation) -> None:
        """Send a confirmation. If SBF does not support ``only_guests``, omit this key."""
        if confirmation.only_guests:
            try:
                return self._sbf.confirm(self._element, confirmation)
            except BadInput as error:
                log.info("only_guests_unknown_to_sbf", element=self._element, error=error)
        return self._sbf.confirm(self._element, confirmation.model_copy(update={"only_guests": None}))

    def report_errors(self, document: WantedDocument, errors: ClusterErrors, refusals: Mapping[str, int]) -> None:
        """Report errors by cluster ID. ``refusals`` is how often in a row the host refused a cluster, by cluster ID."""
        keys = map_cluster_keys(document.wanted)
        message = "; ".join(
            f"cluster {keys.get(cluster, cluster)}: {text}" if cluster else text for cluster, text in errors.items()
        )
        log.warning("reconcile_failed", element=self._element, revision=document.revision, message=message)
        by_cluster = {cluster: text for cluster, text in errors.items() if cluster}
        refused = {cluster: by_cluster[cluster] for cluster in _list_refused(by_cluster, refusals) if cluster in keys}
        self._may_be_in_error = True
        self._sbf.report_error(self._element, document.revision, message, refused, by_cluster)

    def report_refusals(self, document: WantedDocument, errors: ClusterErrors, refusals: Mapping[str, int]) -> None:
        """Report the errors if the host refused one of these clusters `MAX_REFUSALS` times in a row.

        Report each cluster once: SBF sets a cluster to failing only if the cluster was never active, and `confirm`
        reports the errors of other clusters.
        """
        refused = _list_refused(errors, refusals)
        if new := refused - self._refused:
            self.report_errors(document, errors, {cluster: refusals[cluster] for cluster in new})
        self._refused = refused

    def report_unreadable(self, error: AnswerUnreadable, revision: int) -> None:
        """Report that this version of the agent cannot read the wanted document. If the report fails, log the error.

        ``revision`` is the revision of the last readable document.
        """
        message = (
            f"this agent (virtcloud {__version__}) cannot read the wanted document: {error.fault}; the host keeps its "
            "clusters and guests, but gets no changes: upgrade the agent to SBF's version"
        )
        self._may_be_in_error = True
        try:
            self._sbf.report_error(self._element, revision, message)
        except VirtcloudError as failure:
            log.warning("error_not_reported", element=self._element, error=failure)

    def report_drift(self, document: WantedDocument, steps: Iterable[Step]) -> None:
        """Report that the host differs from the confirmed revision. ``steps`` are the difference."""
        log.warning("drifted", element=self._element, revision=document.revision, steps=format_steps(steps))
        self._sbf.report_drift(self._element, document.revision)


def _list_refused(clusters: Iterable[str], refusals: Mapping[str, int]) -> frozenset[str]:
    return frozenset(cluster for cluster in clusters if refusals.get(cluster, 0) >= MAX_REFUSALS)


def join_reasons(*reasons: ClusterErrors) -> ClusterErrors:
    """Return the reasons for each cluster, separated by semicolons. Omit repeated reasons.

    Pass errors first: if a text begins with the progress of a fetch, the command line does not show the text as an
    error.
    """
    clusters = dict.fromkeys(cluster for one in reasons for cluster in one)
    return {
        cluster: "; ".join(dict.fromkeys(one[cluster] for one in reasons if cluster in one)) for cluster in clusters
    }
