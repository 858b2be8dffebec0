"""A hypervisor, accessed through libvirt. Only this module imports libvirt.

The module raises no libvirtError to its callers. Every call has a deadline (`call_deadlines`), because a hanging
libvirtd neither answers nor closes the socket. libvirt's keepalive messages need an event loop, and are not sent while
a connection is being opened.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit
from xml.etree import ElementTree as ET

import libvirt

from virtcloud.agent.guests.call_deadlines import DeadlineCalls
from virtcloud.agent.guests.container_init import power_off_systemd
from virtcloud.agent.guests.container_mtu import set_container_mtu
from virtcloud.agent.guests.domains import NAMESPACE, DomainOwnership, GuestDomain, parse_ownership
from virtcloud.model.errors import Refused, Unreachable

T = TypeVar("T")
LIBVIRTD_REMEDY = "; check libvirtd: systemctl status libvirtd"
CALLS_AT_ONCE = 5
"""libvirtd executes at most this number of calls of one connection at once (``max_client_requests``, libvirtd.conf)."""
_ALIVE = frozenset(
    {libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_BLOCKED, libvirt.VIR_DOMAIN_NOSTATE, libvirt.VIR_DOMAIN_PAUSED}
)
"""The states of a running guest.

A guest can be paused because it is starting, or because an administrator paused it (``virsh suspend``, ``virsh dump``).
If an earlier version of the agent started the guest, QEMU also pauses the guest when the host's disk is full. The agent
does not restart a paused guest, because the guest would lose its memory.
"""
_CONNECTION_LOST = frozenset(
    {libvirt.VIR_ERR_SYSTEM_ERROR, libvirt.VIR_ERR_INTERNAL_ERROR, libvirt.VIR_ERR_RPC, libvirt.VIR_ERR_NO_CONNECT}
)


@dataclass(frozen=True, slots=True)
class LibvirtDeadlines:
    """Deadlines in seconds for calls that read, for calls that change a domain, and for closing connections.

    The deadline for changes is longer, because libvirt waits up to 30 s for a domain's start or end.
    """

    read_s: float = 15.0
    change_s: float = 60.0
    close_s: float = 2.0


@dataclass(slots=True, eq=False)
class LibvirtConnection:
    """A connection with libvirtd. ``calls`` is the number of calls over this connection that have not returned."""

    opened: Any
    calls: int = 0


class LibvirtHypervisor:
    """A `HypervisorApi` for one libvirtd. Thread-safe.

    The object connects at the first call, and again after a restart of libvirtd. If all connections have
    `CALLS_AT_ONCE` open calls, a further call opens a connection, so that calls that read do not wait for starts of
    guests.
    """

    def __init__(
        self, uri: str, deadlines: LibvirtDeadlines | None = None, progress: Callable[[], object] = lambda: None
    ) -> None:
        """Use the libvirtd at ``uri``. ``progress`` is called after each call."""
        libvirt.registerErrorHandler(_ignore_error, None)  # otherwise libvirt prints every error to stderr
        self._uri = uri
        self._deadlines = deadlines or LibvirtDeadlines()
        self._progress = progress
        self._calls = DeadlineCalls(f"libvirt ({uri})", "if libvirtd hangs: systemctl restart libvirtd")
        self._lock = threading.Lock()
        self._connections: list[LibvirtConnection] = []

    def close(self) -> None:
        """Close all connections. If libvirtd hangs, the connections stay open until this process ends."""
        with suppress(Unreachable):
            self._calls.run("close the connection", self._close, self._deadlines.close_s)

    def _close(self) -> None:
        with self._lock:
            connections, self._connections = self._connections, []
        for connection in connections:
            with suppress(libvirt.libvirtError):  # the connection may be broken
                connection.opened.close()

    def list_domains(self) -> list[GuestDomain]:
        """Return all domains."""
        return self._call("list domains", _read_domains)

    def find_domain(self, name: str) -> GuestDomain | None:
        """Return the domain with this name, or None."""
        return self._call(f"find domain {name}", lambda connection: _find_domain(connection, name))

    def start(self, xml: str) -> None:
        """Start a transient domain, which libvirt deletes when the guest ends."""
        name = ET.fromstring(xml).findtext("name")  # noqa: S314 - written by virtcloud
        self._call(f"start domain {name}", lambda connection: connection.createXML(xml, 0), repeat=False, changes=True)

    def set_mtu(self, name: str, mtu: int) -> None:
        """Set the MTU of a running container's interface."""
        self._call(f"set the MTU of domain {name}", lambda connection: _set_mtu(connection, name, mtu), changes=True)

    def shut_down(self, name: str, *, systemd: bool = False) -> None:
        """Request that a domain shuts down. Do nothing if the domain is absent."""
        self._call(f"shut down domain {name}", lambda connection: _shut_down(connection, name, systemd=systemd))

    def destroy(self, name: str) -> None:
        """Stop a domain immediately."""
        self._call(f"destroy domain {name}", lambda connection: _destroy(connection, name), changes=True)

    def find_console(self, name: str) -> str | None:
        """Return the path of a domain's console terminal, or None if the domain or the terminal is missing."""
        return self._call(f"find the console of domain {name}", lambda connection: _find_console(connection, name))

    def capabilities(self) -> str:
        """Return the capabilities of libvirt's driver as XML."""
        return self._call("read capabilities", lambda connection: str(connection.getCapabilities()))

    def has_kvm(self) -> bool:
        """Return whether the hypervisor lists KVM among its capabilities. A listed KVM may still not work."""
        return self._call("read capabilities", lambda connection: "<domain type='kvm'" in connection.getCapabilities())

    def is_xen(self) -> bool:
        """Return whether the URI selects libvirt's driver for Xen, for example ``xen:///system``."""
        return urlsplit(self._uri).scheme.partition("+")[0] == "xen"

    def _call(self, action: str, call: Callable[[Any], T], *, repeat: bool = True, changes: bool = False) -> T:
        """Call libvirtd with a deadline, which is longer if ``changes`` is true.

        ``repeat``: whether to repeat the call once after the loss of a connection that an earlier call opened.

        Raise Refused if libvirtd refuses the call. Raise Unreachable without a connection, or without an answer in
        time.
        """
        seconds = self._deadlines.change_s if changes else self._deadlines.read_s
        try:
            return self._calls.run(action, lambda: self._call_once(action, call, repeat=repeat), seconds)
        finally:
            self._progress()

    def _call_once(self, action: str, call: Callable[[Any], T], *, repeat: bool) -> T:
        connection, is_new = self._reserve()
        try:
            return call(connection.opened)
        except libvirt.libvirtError as error:
            if not _is_connection_lost(error):
                raise Refused(f"libvirt ({self._uri}) could not {action}: {error}") from error
            self._forget(connection)
            if is_new or not repeat:
                raise Unreachable(f"libvirt ({self._uri}) could not {action}: connection lost: {error}") from error
        finally:
            with self._lock:
                connection.calls -= 1
        return self._call_once(action, call, repeat=False)

    def _reserve(self) -> tuple[LibvirtConnection, bool]:
        with self._lock:
            found = next((one for one in self._connections if one.calls < CALLS_AT_ONCE), None)
            connection = found or self._connect()
            connection.calls += 1
            return connection, found is None

    def _connect(self) -> LibvirtConnection:
        try:
            connection = LibvirtConnection(libvirt.open(self._uri))
        except libvirt.libvirtError as error:
            raise Unreachable(f"libvirt does not answer at {self._uri}: {error}{LIBVIRTD_REMEDY}") from error
        self._connections.append(connection)
        return connection

    def _forget(self, lost: LibvirtConnection) -> None:
        """After the loss of one connection, remove all connections from the list: libvirtd has ended.

        A removed connection is closed when no thread uses it any more.
        """
        with self._lock:
            if lost in self._connections:
                self._connections = []


def _ignore_error(_context: object, _error: object) -> None:
    """Print nothing: the raised exception contains the error."""


def _read_domains(connection: Any) -> list[GuestDomain]:  # noqa: ANN401 - libvirt has no types
    return [_read_domain(domain) for domain in connection.listAllDomains(0)]


def _read_domain(domain: Any) -> GuestDomain:  # noqa: ANN401 - libvirt has no types
    try:
        return GuestDomain(domain.name(), domain.state()[0] in _ALIVE, _read_ownership(domain))
    except libvirt.libvirtError as error:
        if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
            raise
        return GuestDomain(domain.name(), running=False)  # the domain ended after it was listed


def _set_mtu(connection: Any, name: str, mtu: int) -> None:  # noqa: ANN401 - libvirt has no types
    if connection.getType() == "LXC":
        set_container_mtu(name, connection.lookupByName(name).ID(), mtu)


def _find_domain(connection: Any, name: str) -> GuestDomain | None:  # noqa: ANN401 - libvirt has no types
    try:
        return _read_domain(connection.lookupByName(name))
    except libvirt.libvirtError as error:
        if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
            raise
        return None


def _find_console(connection: Any, name: str) -> str | None:  # noqa: ANN401 - libvirt has no types
    try:
        description = ET.fromstring(connection.lookupByName(name).XMLDesc(0))  # noqa: S314 - written by libvirt
    except libvirt.libvirtError as error:
        if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
            raise
        return None
    console = description.find("devices/console[@type='pty']")
    source = None if console is None else console.find("source")
    return None if source is None else source.get("path")


def _read_ownership(domain: Any) -> DomainOwnership | None:  # noqa: ANN401 - libvirt has no types
    try:
        return parse_ownership(_read_metadata(domain))
    except libvirt.libvirtError as error:
        if error.get_error_code() not in {libvirt.VIR_ERR_NO_DOMAIN_METADATA, libvirt.VIR_ERR_NO_DOMAIN}:
            raise
        return None
    except (KeyError, ValueError, ET.ParseError):
        return None  # another program wrote the metadata, so the domain is no guest of virtcloud


def _read_metadata(domain: Any) -> str:  # noqa: ANN401 - libvirt has no types
    """Return the metadata element of virtcloud as XML. The result is empty if the domain has no such element.

    If a container ended while libvirtd did not run, libvirt's LXC driver (observed with libvirt 9.0) keeps the
    container's transient domain after the start of libvirtd, and refuses to return the domain's metadata. libvirt
    removes this domain when the agent destroys it.
    """
    try:
        return str(domain.metadata(libvirt.VIR_DOMAIN_METADATA_ELEMENT, NAMESPACE, 0))
    except libvirt.libvirtError as error:
        if error.get_error_code() != libvirt.VIR_ERR_OPERATION_INVALID:
            raise
    found = ET.fromstring(domain.XMLDesc(0)).find(f"metadata/{{{NAMESPACE}}}guest")  # noqa: S314 - written by libvirt
    return "" if found is None else ET.tostring(found, encoding="unicode")


def _shut_down(connection: Any, name: str, *, systemd: bool) -> None:  # noqa: ANN401 - libvirt has no types
    try:
        domain = connection.lookupByName(name)
        if systemd:
            power_off_systemd(name, domain.ID())
        else:
            # Without a flag, the LXC driver (observed with libvirt 9.0) returns success without effect if the container
            # lacks initctl.
            domain.shutdownFlags(libvirt.VIR_DOMAIN_SHUTDOWN_SIGNAL if connection.getType() == "LXC" else 0)
    except Refused:
        return  # the container has ended
    except libvirt.libvirtError as error:
        if _is_connection_lost(error):
            raise  # other errors need no reaction: the caller destroys the domain if it still runs


def _destroy(connection: Any, name: str) -> None:  # noqa: ANN401 - libvirt has no types
    try:
        connection.lookupByName(name).destroy()
    except libvirt.libvirtError as error:
        if error.get_error_code() not in {libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_OPERATION_INVALID}:
            raise


def _is_connection_lost(error: libvirt.libvirtError) -> bool:
    return error.get_error_domain() == libvirt.VIR_FROM_RPC and error.get_error_code() in _CONNECTION_LOST
