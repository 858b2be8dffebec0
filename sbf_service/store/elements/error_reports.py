"""The error reports of elements, and the errors of single clusters."""

from collections.abc import Mapping
from datetime import timedelta

from sbf_service.domain.error_report import format_cluster_errors
from sbf_service.log import get_log
from sbf_service.store.clusters.cluster_queries import UNSETTLED, find_clusters, is_network_on, is_unsettled_on
from sbf_service.store.clusters.transitions import ON_ELEMENT, apply_due_transitions, increment_versions
from sbf_service.store.elements.confirmations import (
    MAX_ERROR_CHARACTERS,
    ElementClusterErrors,
    confirmation_topic,
    reset_confirmation,
)
from sbf_service.store.elements.revisions import require_element
from sbf_service.store.networks.network_routers import replace_routers, take_over_routers
from sbf_service.store.networks.publication_moves import move_publications, take_over_publications
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.columns import split_ids
from sbf_service.store.unit_of_work import Unit, record_audit
from virtcloud.model.element import ElementKind
from virtcloud.model.message_text import printable
from virtcloud.model.values import Name
from virtcloud.model.views import Confirmation

log = get_log(__name__)


def record_error(  # noqa: PLR0913 - the parts of an error report
    unit: Unit,
    name: str,
    message: str,
    drain_deadline: timedelta,
    *,
    reachable: bool = True,
    clusters: Mapping[str, str] | None = None,
    with_transitions: bool = True,
) -> bool:
    """Record an element's error report. Idempotent. Return whether the report differs from the previous report.

    ``clusters`` maps cluster IDs to their errors, or is None if the error concerns all clusters on the element. Unless
    ``with_transitions``, the caller applies the transitions of clusters later. Raise NotFound for an unknown element.

    If the element is not ``reachable``, its active clusters become degraded. But clusters on a gateway stay active if
    they are complete on another gateway.

    If a gateway becomes unreachable, other gateways take over its tasks as router and its publications where possible.
    If a gateway becomes reachable, SBF again tries to replace other gateways (:func:`.take_over_routers`,
    :func:`.take_over_publications`).
    """
    row = require_element(unit, name)
    former = row.reachable
    text = message[:MAX_ERROR_CHARACTERS]
    of_clusters = None if clusters is None else format_cluster_errors(clusters, MAX_ERROR_CHARACTERS)
    if (row.trouble, row.troubles, row.reachable) == (text, of_clusters, reachable):
        return False
    row.trouble, row.troubles, row.reachable = text, of_clusters, reachable
    unit.changed.add(confirmation_topic(name))
    unit.session.flush()
    if row.kind == ElementKind.GATEWAY:
        _move_from_unreachable(unit, Name(name), reachable=reachable, was_reachable=former)
    record_audit(unit, "element_trouble", element=name, why=text)
    increment_versions(unit, ON_ELEMENT, element=name)
    if with_transitions:
        _try_transitions(unit, name, drain_deadline)
    return True


def _move_from_unreachable(unit: Unit, gateway: Name, *, reachable: bool, was_reachable: bool) -> None:
    if not reachable:
        replace_routers(unit, gateway)
        move_publications(unit, gateway)
    elif not was_reachable:
        take_over_routers(unit, gateway)
        take_over_publications(unit, gateway)


def _try_transitions(unit: Unit, name: str, drain_deadline: timedelta) -> None:
    """Apply the due transitions of an element's clusters.

    If a row cannot be read, log the error: the deadline sweep later applies the transitions of each cluster separately.
    """
    try:
        with unit.session.begin_nested():
            apply_due_transitions(unit, drain_deadline, ON_ELEMENT, element=name)
    except ValueError as error:
        log.fault("transitions_postponed", error, element=name)


def record_agent_error(
    unit: Unit, name: str, message: str, clusters: Mapping[str, str], drain_deadline: timedelta
) -> bool:
    """Record an agent's error report. Return whether the report differs from the previous report.

    If ``clusters`` is empty, the error concerns all clusters on the element. If the agent was stale, reset the
    element's confirmed revision: the host may have restarted. Raise NotFound for an unknown element.
    """
    if not require_element(unit, name).reachable:
        reset_confirmation(unit, name, "the agent was stale and now reports an error", drain_deadline)
    return record_error(unit, name, message, drain_deadline, clusters=clusters or None)


def describe_excluded_clusters(unit: Unit, name: str, confirmation: Confirmation) -> ElementClusterErrors | None:
    """Return the errors of the clusters that a host's confirmation excludes; None if no cluster is excluded.

    If a cluster on the host has joined a network, each key of the confirmation except ``unstopped_guests`` can also
    contain the ID of the cluster that created the network. The creating cluster need not have a placement on the host.
    """
    incomplete, remaining = confirmation.incomplete or {}, confirmation.remaining or {}
    parts = (remaining, incomplete)
    texts = {
        cluster: "; ".join(part[cluster] for part in parts if cluster in part) for cluster in {**parts[1], **parts[0]}
    }
    if not texts:
        return None
    keys = {
        row.id: row.key
        for ids in split_ids(cluster for cluster in texts if cluster.isalnum())  # PostgreSQL accepts no NUL
        for row in find_clusters(unit, ClusterRow.id.in_(ids), UNSETTLED, is_unsettled_on(name) | is_network_on(name))
    }
    clusters = {cluster: text for cluster, text in texts.items() if cluster in keys}
    message = "; ".join(f"cluster {printable(keys.get(cluster, cluster))}: {text}" for cluster, text in texts.items())
    return ElementClusterErrors(
        message[:MAX_ERROR_CHARACTERS],
        clusters,
        blocked=frozenset(clusters.keys() & incomplete.keys()),
        only_guests=frozenset(confirmation.only_guests or ()),
        unstopped=confirmation.unstopped_guests or {},
        remaining=frozenset(clusters.keys() & remaining.keys()),
        unknown=frozenset(remaining.keys() - keys.keys()),
    )
