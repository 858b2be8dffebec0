"""One hypervisor through libvirt. The only module that imports libvirt; no libvirtError leaves it.

Every call has a deadline (`call_deadlines`): a libvirtd that hangs answers no call and closes no socket.
libvirt's own keepalive messages would not cover opening a connection, and would need an event loop.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from xml.etree import ElementTree as ET

import libvirt

from virtcloud.agent.guests.call_deadlines import DeadlineCalls
from virtcloud.agent.guests.domains import NAMESPACE, DomainOwnership, GuestDomain, parse_ownership
from virtcloud.model.errors import Refused, Unreachable

T = TypeVar("T")
_ALIVE = frozenset({libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_BLOCKED, libvirt.VIR_DOMAIN_NOSTATE})
_CONNECTION_LOST = frozenset(
    {libvirt.VIR_ERR_SYSTEM_ERROR, libvirt.VIR_ERR_INTERNAL_ERROR, libvirt.VIR_ERR_RPC, libvirt.VIR_ERR_NO_CONNECT}
)


@dataclass(frozen=True, slots=True)
class LibvirtDeadlines:
    """In seconds: for a call that reads, and for one that starts or ends a domain (libvirt itself waits up to 30)."""

    read_s: float = 15.0
    change_s: float = 60.0
    close_s: float = 2.0


class LibvirtHypervisor:
    """A hypervisor's libvirtd; it connects when it is first needed, and again when libvirtd was restarted."""

    def __init__(
        self, uri: str, deadlines: LibvirtDeadlines | None = None, progress: Callable[[], object] = lambda: None
    ) -> None:
        """Store the address of libvirtd; no connection is made yet. ``progress`` is called after each call."""
        libvirt.registerErrorHandler(_ignore_error, None)  # libvirt prints every error to stderr otherwise
        self._uri = uri
        self._deadlines = deadlines or LibvirtDeadlines()
        self._progress = progress
        self._calls = DeadlineCalls(f"libvirt ({uri})", "is libvirtd hung? systemctl restart libvirtd")
        self._connection: Any = None

    def close(self) -> None:
        """Close the connection, unless libvirtd is hung: the connection then ends with this process."""
        with suppress(Unreachable):
            self._calls.run("close the connection", self._close, self._deadlines.close_s)

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(libvirt.libvirtError):  # it may be broken already
                connection.close()

    def list_domains(self) -> list[GuestDomain]:
        """Give every domain."""
        return self._call("list domains", lambda at: [_read_domain(one) for one in at.listAllDomains(0)])

    def find_domain(self, name: str) -> GuestDomain | None:
        """Give one domain, or None."""
        return self._call(f"find domain {name}", lambda at: _find_domain(at, name))

    def start(self, xml: str) -> None:
        """Start a transient domain: it is forgotten by libvirt when it ends."""
        name = ET.fromstring(xml).findtext("name")  # noqa: S314 - we wrote it
        self._call(f"start domain {name}", lambda at: at.createXML(xml, 0), repeat=False, changes=True)

    def shut_down(self, name: str) -> None:
        """Ask a domain to end; it may not listen, and it may be gone."""
        self._call(f"shut down domain {name}", lambda at: _shut_down(at, name))

    def destroy(self, name: str) -> None:
        """End a domain; one that is gone already is no error."""
        self._call(f"destroy domain {name}", lambda at: _destroy(at, name), changes=True)

    def has_kvm(self) -> bool:
        """Say whether its capabilities have KVM; that it is listed does not prove that it works."""
        return self._call("read capabilities", lambda at: "<domain type='kvm'" in at.getCapabilities())

    def _call(self, what: str, ask: Callable[[Any], T], *, repeat: bool = True, changes: bool = False) -> T:
        """Ask libvirtd; raise Unreachable when it does not answer in time, Refused when it says no."""
        seconds = self._deadlines.change_s if changes else self._deadlines.read_s
        try:
            return self._calls.run(what, lambda: self._asked(what, ask, repeat=repeat), seconds)
        finally:
            self._progress()

    def _asked(self, what: str, ask: Callable[[Any], T], *, repeat: bool) -> T:
        """Ask libvirtd; a connection that was lost meanwhile is made once more, where asking again does no harm."""
        fresh = self._connection is None
        try:
            return ask(self._connected())
        except libvirt.libvirtError as error:
            if not _is_connection_lost(error):
                raise Refused(f"libvirt ({self._uri}) could not {what}: {error}") from error
            self._close()
            if fresh or not repeat:
                raise Unreachable(f"libvirt ({self._uri}) was lost while asked to {what}: {error}") from error
        return self._asked(what, ask, repeat=False)

    def _connected(self) -> Any:  # noqa: ANN401 - libvirt has no types
        if self._connection is None:
            try:
                self._connection = libvirt.open(self._uri)
            except libvirt.libvirtError as error:
                raise Unreachable(
                    f"libvirt does not answer at {self._uri}: {error}; is libvirtd running? systemctl status libvirtd"
                ) from error
        return self._connection


def _ignore_error(_context: object, _error: object) -> None:
    """Print nothing: the exception says it all."""


def _read_domain(domain: Any) -> GuestDomain:  # noqa: ANN401 - libvirt has no types
    try:
        return GuestDomain(domain.name(), domain.state()[0] in _ALIVE, _read_ownership(domain))
    except libvirt.libvirtError as error:
        if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
            raise
        return GuestDomain(domain.name(), running=False)  # it ended since it was listed


def _find_domain(connection: Any, name: str) -> GuestDomain | None:  # noqa: ANN401 - libvirt has no types
    try:
        return _read_domain(connection.lookupByName(name))
    except libvirt.libvirtError as error:
        if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
            raise
        return None


def _read_ownership(domain: Any) -> DomainOwnership | None:  # noqa: ANN401 - libvirt has no types
    try:
        return parse_ownership(domain.metadata(libvirt.VIR_DOMAIN_METADATA_ELEMENT, NAMESPACE, 0))
    except libvirt.libvirtError as error:
        if error.get_error_code() not in {libvirt.VIR_ERR_NO_DOMAIN_METADATA, libvirt.VIR_ERR_NO_DOMAIN}:
            raise
        return None
    except (KeyError, ET.ParseError):
        return None  # somebody else's element under our name: not our guest


def _shut_down(connection: Any, name: str) -> None:  # noqa: ANN401 - libvirt has no types
    # Without a flag, the LXC driver (seen with 9.0) says yes and does nothing when the container has no initctl.
    flags = libvirt.VIR_DOMAIN_SHUTDOWN_SIGNAL if connection.getType() == "LXC" else 0
    try:
        connection.lookupByName(name).shutdownFlags(flags)
    except libvirt.libvirtError as error:
        if _is_connection_lost(error):
            raise  # anything else means: it does not listen, or is gone; destroy() sees to it


def _destroy(connection: Any, name: str) -> None:  # noqa: ANN401 - libvirt has no types
    try:
        connection.lookupByName(name).destroy()
    except libvirt.libvirtError as error:
        if error.get_error_code() not in {libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_OPERATION_INVALID}:
            raise


def _is_connection_lost(error: libvirt.libvirtError) -> bool:
    return error.get_error_domain() == libvirt.VIR_FROM_RPC and error.get_error_code() in _CONNECTION_LOST
