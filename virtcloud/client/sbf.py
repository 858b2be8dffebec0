"""SBF over HTTP: one method for each call, documents in, documents out, the model's exceptions."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from virtcloud import __version__
from virtcloud.client.connection import LONGEST_WAIT_S, SYSTEM_TRUST, Connection, SbfResponse, TlsTrust
from virtcloud.client.credentials import TokenSource, no_token
from virtcloud.model.access import Identity, NewToken, QuotaLimits, QuotaView, TokenId, TokenRequest, TokenView
from virtcloud.model.changes import AuditEntry, ChangeDryRun, ClusterDryRun, ElementDifference, ElementReconciliation
from virtcloud.model.cluster import ClusterRequest, LeaseExtension
from virtcloud.model.document import Document, explain_validation_error, find_unknown_keys, list_validation_errors
from virtcloud.model.errors import BadInput, Conflict, ServiceUnreachable
from virtcloud.model.port_use import PortAdoption, PortRelease, PortUse, PortView
from virtcloud.model.site import SiteCables, SitePart, SitePreparation
from virtcloud.model.topology import Topology
from virtcloud.model.values import ClusterKey, Name, PortName, UserName, VlanId
from virtcloud.model.views import (
    CleanDeclaration,
    ClusterView,
    Confirmation,
    ElementErrorReport,
    ElementView,
    JobStatement,
    Pool,
    SiteView,
)
from virtcloud.model.wanted import WantedDocument

DEFAULT_URL = "unix:///run/virtcloud/sbf.sock"
DEVICE_S = 120.0
"""A call that talks to a device may take this much longer."""
ANY_VERSION = "*"
"""Stands for any version: the document is replaced, whoever changed it since it was read."""
UNKNOWN_KEYS: Final = "ignore"
"""What becomes of an answer's key that this version does not know: a later SBF sent it."""
D = TypeVar("D", bound=Document)


class SbfClient:
    """The service at ``url``, ``http://host:port``, ``https://…`` or ``unix:///path/of/socket``.

    Every method raises :class:`ServiceUnreachable` when SBF does not answer within ``timeout`` seconds (a long poll:
    that many past its ``wait``), and the exception of the model that SBF answered with.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        timeout: float = 10.0,
        *,
        token: TokenSource = no_token,
        trust: TlsTrust = SYSTEM_TRUST,
    ) -> None:
        """Prepare the connection; nothing is sent yet. Raises :class:`BadInput` when the address cannot be one.

        ``token`` gives the token to show (:func:`virtcloud.client.credentials.token_source`); ``trust`` says whose
        certificates are believed.
        """
        self._at = Connection(url, timeout, token, trust)

    def __enter__(self) -> Self:
        """Use it as a context."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close it."""
        self.close()

    @property
    def url(self) -> str:
        """The address of SBF, as it was given."""
        return self._at.url

    def close(self) -> None:
        """Close the connections."""
        self._at.close()

    def put_topology(self, topology: Topology, version: str | None = None) -> Topology:
        """Replace the topology; may be repeated. ``version`` is that of the topology that was read before the change.

        Raises BadInput or Conflict for an impossible one, PreconditionFailed when it was changed since ``version``,
        PreconditionRequired without ``version`` unless there is none yet. ``ANY_VERSION`` replaces whatever is there.
        """
        sent = self._at.send("PUT", "/v1/topology", topology, if_match=_etag(version))
        return self._document(Topology, sent)

    def topology(self) -> Topology:
        """Return the topology; raises NotFound before the first one was put."""
        return self._document(Topology, self._at.send("GET", "/v1/topology"))

    def versioned_topology(self) -> tuple[Topology, str | None]:
        """Return the topology, to be changed, and its version; None from an SBF that has no versions. Raises NotFound.

        Raises Conflict where a later SBF has keys that would be lost when this client writes the topology back.
        """
        answer = self._at.send("GET", "/v1/topology")
        return self._to_change(Topology, answer), None if answer.etag is None else answer.etag.strip('"')

    def sites(self) -> list[SiteView]:
        """Give all sites with the state of their pools."""
        return self._documents(SiteView, self._at.send("GET", "/v1/sites"))

    def site(self, name: str) -> SiteView:
        """Give one site; raises NotFound."""
        return self._document(SiteView, self._at.send("GET", f"/v1/sites/{Name(name)}"))

    def pool(self, site: str) -> Pool:
        """Give a site's pool; raises NotFound."""
        return self._document(Pool, self._at.send("GET", f"/v1/sites/{Name(site)}/pool"))

    def put_pool(self, site: str, pool: Pool) -> Pool:
        """Say which VLAN numbers a site gives; raises BadInput (reserved ones), Conflict (used ones would vanish)."""
        return self._document(Pool, self._at.send("PUT", f"/v1/sites/{Name(site)}/pool", pool))

    def preview_pool(self, site: str, pool: Pool) -> ChangeDryRun:
        """Read a site's devices and return what :meth:`put_pool` would change on them. Raises the same."""
        path = f"/v1/sites/{Name(site)}/pool/dry-run"
        return self._document(ChangeDryRun, self._at.send("POST", path, pool, wait=DEVICE_S))

    def site_part(self, site: str) -> tuple[SitePart, str | None]:
        """Return one site's part of the topology, to be changed, and its version; raises NotFound, Conflict."""
        answer = self._at.send("GET", f"/v1/sites/{Name(site)}/topology")
        return self._to_change(SitePart, answer), None if answer.etag is None else answer.etag.strip('"')

    def put_site_part(self, part: SitePart, version: str | None = None) -> SitePart:
        """Replace one site's part of the topology; other sites stay. Version and errors as :meth:`put_topology`."""
        path = f"/v1/sites/{part.site.name}/topology"
        return self._document(SitePart, self._at.send("PUT", path, part, if_match=_etag(version)))

    def preview_site_part(self, part: SitePart) -> ChangeDryRun:
        """Read the devices concerned and return what :meth:`put_site_part` would change on them. Raises the same."""
        path = f"/v1/sites/{part.site.name}/topology/dry-run"
        return self._document(ChangeDryRun, self._at.send("POST", path, part, wait=DEVICE_S))

    def preview_topology(self, topology: Topology) -> ChangeDryRun:
        """Read the devices concerned and return what :meth:`put_topology` would change on them. Raises the same."""
        return self._document(ChangeDryRun, self._at.send("POST", "/v1/topology/dry-run", topology, wait=DEVICE_S))

    def say_clean(self, site: str, vlan: int, *, reason: str) -> SiteView:
        """Say that a number in quarantine is clean at a site; may be repeated. The caller's name is kept with it.

        Raises BadInput (a blank reason), NotFound, Conflict for a number in use.
        """
        path = f"/v1/sites/{Name(site)}/quarantine/{VlanId(vlan)}/clean"
        return self._document(SiteView, self._at.send("POST", path, _made(CleanDeclaration, reason=reason)))

    def whoami(self) -> Identity:
        """Say whom SBF takes the caller for; raises Unauthenticated."""
        return self._document(Identity, self._at.send("GET", "/v1/whoami"))

    def clock(self) -> datetime:
        """Return SBF's time of day, to a second; raise ServiceUnreachable where it does not say it."""
        said = self._at.send("GET", "/healthz").date
        if said is None:
            raise ServiceUnreachable("SBF's answer has no Date; is there a proxy between that removes it?")
        return parsedate_to_datetime(said)

    def create_token(
        self, name: str, role: str, sites: Sequence[str] = (), expires_in_s: float | None = None
    ) -> NewToken:
        """Make a token; each call makes another one. Raises BadInput, Forbidden."""
        request = _made(TokenRequest, name=name, role=role, sites=sites, expires_in_s=expires_in_s)
        return self._document(NewToken, self._at.send("POST", "/v1/tokens", request))

    def tokens(self) -> list[TokenView]:
        """Give all tokens, also those that are valid no longer; raises Forbidden."""
        return self._documents(TokenView, self._at.send("GET", "/v1/tokens"))

    def revoke_token(self, token_id: str) -> TokenView:
        """Let a token be valid no longer; may be repeated. Raises NotFound, Forbidden."""
        return self._document(TokenView, self._at.send("DELETE", f"/v1/tokens/{TokenId(token_id)}"))

    def verify(self, site: str) -> SiteCables:
        """Read a site's switches and compare its cables with the topology; changes nothing. Raises NotFound."""
        return self._document(SiteCables, self._at.send("POST", f"/v1/sites/{Name(site)}/verify", wait=DEVICE_S))

    def preparation(
        self,
        site: str,
        platform: str | None = None,
        port: str | None = None,
        core_port: str | None = None,
        transport: str | None = None,
    ) -> SitePreparation:
        """Give what is to be configured once for a site; raises BadInput, NotFound, Conflict with the reason."""
        query = {"platform": platform, "port": port, "core_port": core_port, "transport": transport}
        path = f"/v1/sites/{Name(site)}/preparation"
        return self._document(SitePreparation, self._at.send("GET", path, query=query))

    def quotas(self) -> list[QuotaView]:
        """Give the quotas of all users who have one of their own; raises Forbidden."""
        return self._documents(QuotaView, self._at.send("GET", "/v1/quotas"))

    def quota(self, user: str) -> QuotaView:
        """Give a user's quota; raises Forbidden."""
        return self._document(QuotaView, self._at.send("GET", f"/v1/quotas/{UserName(user)}"))

    def put_quota(  # noqa: PLR0913 - each limit by its name
        self,
        user: str,
        clusters: int | None = None,
        sites: int | None = None,
        lease_s: float | None = None,
        *,
        networks: int | None = None,
        guests: int | None = None,
        cpus: int | None = None,
        memory_mb: int | None = None,
    ) -> QuotaView:
        """Set how much a user may have; what is not given is as the service's settings say. May be repeated.

        Raises BadInput, Forbidden.
        """
        given = {"clusters": clusters, "sites": sites, "lease_s": lease_s, "networks": networks, "guests": guests}
        limits = _made(QuotaLimits, **given, cpus=cpus, memory_mb=memory_mb)
        return self._document(QuotaView, self._at.send("PUT", f"/v1/quotas/{UserName(user)}", limits))

    def elements(self) -> list[ElementView]:
        """Give all elements with their revisions."""
        return self._documents(ElementView, self._at.send("GET", "/v1/elements"))

    def element(self, name: str) -> ElementView:
        """Give one element; raises NotFound."""
        return self._document(ElementView, self._at.send("GET", f"/v1/elements/{Name(name)}"))

    def difference(self, element: str, *, read: bool = False) -> ElementDifference:
        """Say what would be changed on an element now; with ``read`` a switch is read first (raises ElementError)."""
        path, wait = f"/v1/elements/{Name(element)}/difference", DEVICE_S if read else 0
        return self._document(ElementDifference, self._at.send("GET", path, query=_flags(read=read), wait=wait))

    def reconcile(self, element: str) -> ElementReconciliation:
        """Read a device now and change what differs from its wanted state. Raise NotFound, Conflict (a host)."""
        path = f"/v1/elements/{Name(element)}/reconcile"
        return self._document(ElementReconciliation, self._at.send("POST", path, wait=DEVICE_S))

    def ports(self, element: str) -> list[PortView]:
        """Read a switch now and return its managed ports with their uses. Raise NotFound, Conflict, ElementError."""
        path = f"/v1/elements/{Name(element)}/ports"
        return self._documents(PortView, self._at.send("GET", path, wait=DEVICE_S))

    def adopt_ports(self, element: str, uses: Mapping[PortName, PortUse]) -> None:
        """Adopt ports that are in other use, each with the use that is agreed to. Idempotent."""
        self._at.send("POST", f"/v1/elements/{Name(element)}/ports/adopt", PortAdoption(ports=dict(uses)))

    def release_ports(self, element: str, ports: Iterable[str], *, forget: bool = False) -> None:
        """Take ports back from SBF: what was there before is put back, unless ``forget``. Raise Conflict."""
        release = _made(PortRelease, ports=tuple(ports), forget=forget)
        self._at.send("POST", f"/v1/elements/{Name(element)}/ports/release", release)

    def audit(
        self,
        element: str | None = None,
        cluster: str | None = None,
        after: int | None = None,
        limit: int = 100,
        wait: float = 0,
    ) -> list[AuditEntry]:
        """Give rows of the audit log, oldest first: those past ``after`` (waiting for one), or else the newest."""
        query = {"element": element, "cluster": cluster, "after": after, "limit": limit, "wait": wait or None}
        return self._documents(AuditEntry, self._at.send("GET", "/v1/audit", query=query, wait=wait))

    def put_cluster(self, key: str, request: ClusterRequest) -> ClusterView:
        """Want a cluster; may be repeated. Raises Conflict (by its kinds: what it is about), Gone, NoSuchHost."""
        return self._document(ClusterView, self._at.send("PUT", f"/v1/clusters/{ClusterKey(key)}", request))

    def preview_cluster(self, key: str, request: ClusterRequest) -> ClusterDryRun:
        """Say what :meth:`put_cluster` would do now; nothing is claimed or written. Raises the same."""
        path = f"/v1/clusters/{ClusterKey(key)}"
        return self._document(ClusterDryRun, self._at.send("PUT", path, request, query={"dry_run": "true"}))

    def cluster(
        self, key: str, after: int | None = None, wait: float = 0, cluster_id: str | None = None
    ) -> ClusterView:
        """Return a cluster; with ``after``: once its version is past it, or when ``wait`` seconds are over.

        With ``cluster_id`` it is the one of that id, also when the key stands for another one since.
        """
        query = {} if cluster_id is None else {"id": cluster_id}
        return self._document(ClusterView, self._at.poll(f"/v1/clusters/{ClusterKey(key)}", after, wait, query))

    def clusters(
        self,
        owner: str | None = None,
        *,
        ended: bool = False,
        network: str | None = None,
        limit: int | None = None,
        before: str | None = None,
    ) -> list[ClusterView]:
        """Give the clusters, of one owner if given, the ended ones too if asked.

        With ``ended`` it is the newest ``limit`` of them (100), of those older than the one with the id ``before``.
        With ``network`` the cluster that has this name or key, while it has not ended.
        """
        query = {"owner": owner, "network": network, "limit": limit, "before": before, **_flags(ended=ended)}
        return self._documents(ClusterView, self._at.send("GET", "/v1/clusters", query=query))

    def extend_lease(
        self,
        key: str,
        seconds: float,
        attempt: int | None = None,
        owner: str | None = None,
        cluster_id: str | None = None,
    ) -> ClusterView:
        """Extend a cluster's lease to at least ``seconds`` from now; may be repeated. Which cluster as for deletion.

        Raises BadInput (more than a year), NotFound, Gone, Conflict when it is ending.
        """
        path, query = f"/v1/clusters/{ClusterKey(key)}/lease", {"attempt": attempt, "owner": owner, "id": cluster_id}
        extension = _made(LeaseExtension, seconds=seconds)
        return self._document(ClusterView, self._at.send("POST", path, extension, query=query))

    def share_network(
        self,
        key: str,
        user: str,
        *,
        shared: bool = True,
        cluster_id: str | None = None,
    ) -> ClusterView:
        """Share a cluster's network with ``user``, or stop sharing it. Idempotent. Which cluster as for deletion.

        Raise NotFound, Gone, Conflict for a member or a cluster that ends.
        """
        path = f"/v1/clusters/{ClusterKey(key)}/shares/{UserName(user)}"
        sent = self._at.send("PUT" if shared else "DELETE", path, query={"id": cluster_id})
        return self._document(ClusterView, sent)

    def delete_cluster(
        self, key: str, attempt: int | None = None, owner: str | None = None, cluster_id: str | None = None
    ) -> ClusterView:
        """End a cluster; may be repeated. Raises NotFound when it never was, Gone when it is not the one that is meant.

        ``attempt``, ``owner`` and ``cluster_id`` say which one is meant, where a key may stand for another one since.
        """
        path, query = f"/v1/clusters/{ClusterKey(key)}", {"attempt": attempt, "owner": owner, "id": cluster_id}
        return self._document(ClusterView, self._at.send("DELETE", path, query=query))

    def asked_jobs(self, server: str, wait: float = 0) -> list[ClusterKey]:
        """Return the jobs of a batch server that hosts ask about; waits ``wait`` seconds for one at most."""
        answer = self._at.send(
            "GET", "/v1/jobs", query={"server": server, "wait": min(wait, LONGEST_WAIT_S)}, wait=wait
        )
        return answer.read(TypeAdapter(list[ClusterKey]).validate_json)

    def answer_for_job(self, key: str, word: JobStatement) -> None:
        """Send what a batch server answered about a job. Idempotent. Raise Forbidden."""
        self._at.send("PUT", f"/v1/jobs/{ClusterKey(key)}", word)

    def wanted(self, element: str, after: int | None = None, wait: float = 0) -> WantedDocument:
        """Give what a host or gateway must carry; a long poll like :meth:`cluster`."""
        path = f"/v1/elements/{Name(element)}/wanted"
        return self._document(WantedDocument, self._at.poll(path, after, wait))

    def confirm(self, element: str, revision: int) -> None:
        """Say that an element carries exactly what ``revision`` wants."""
        self._at.send("POST", f"/v1/elements/{Name(element)}/confirmed", Confirmation(revision=revision))

    def trouble(
        self,
        element: str,
        revision: int,
        message: str,
        refused: Mapping[str, str] | None = None,
        clusters: Mapping[str, str] | None = None,
    ) -> None:
        """Say why an element cannot carry what ``revision`` wants; ``refused`` are the clusters it refuses for good.

        ``clusters`` has the words about each cluster, where they are not about the element as a whole.
        """
        told = ElementErrorReport(
            revision=revision, message=message, clusters=dict(clusters or {}), refused=dict(refused or {})
        )
        self._at.send("POST", f"/v1/elements/{Name(element)}/trouble", told)

    def drifted(self, element: str, revision: int) -> None:
        """Say that an element was found different from ``revision``, which it had confirmed."""
        self._at.send("POST", f"/v1/elements/{Name(element)}/drifted", Confirmation(revision=revision))

    def _document(self, kind: type[D], answer: SbfResponse) -> D:
        return answer.read(partial(kind.model_validate_json, extra=UNKNOWN_KEYS))

    def _to_change(self, kind: type[D], answer: SbfResponse) -> D:
        unknown = answer.read(lambda text: list(find_unknown_keys(kind.model_validate_json(text, extra="allow"))))
        if unknown:
            raise Conflict(
                f"SBF at {self.url} has a later version: virtcloud {__version__} does not know {', '.join(unknown)} at "
                f"{answer.path}, and would delete that with any change; upgrade virtcloud here first"
            )
        return self._document(kind, answer)

    def _documents(self, kind: type[D], answer: SbfResponse) -> list[D]:
        return answer.read(partial(TypeAdapter(list[kind]).validate_json, extra=UNKNOWN_KEYS))  # type: ignore[valid-type]


def _etag(version: str | None) -> str | None:
    """Return a version as an entity tag (RFC 9110, 8.8.3)."""
    return version if version in {None, ANY_VERSION} else f'"{version}"'


def _flags(**flags: bool) -> dict[str, str]:
    """Write flags as a query; those that are not set are left out."""
    return {name: "true" for name, is_set in flags.items() if is_set}


def _made(kind: type[D], **keys: object) -> D:
    """Make a document of what a caller gave; raises BadInput with every fault."""
    try:
        return kind.model_validate(keys)
    except ValidationError as error:
        raise BadInput("\n".join(_fault(one) for one in list_validation_errors(error))) from error


def _fault(one: ErrorDetails) -> str:
    where = ".".join(map(str, one["loc"]))
    return f"{where}: {explain_validation_error(one)}" if where else explain_validation_error(one)
