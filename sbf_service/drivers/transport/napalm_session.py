"""What sessions by NAPALM share: opening, closing, and turning foreign errors into ours.

NAPALM and the libraries behind it (PyEZ, ncclient, pyeapi, Netmiko) are loaded when the first device is reached. They
raise some sixty kinds of exceptions without a common root; what each means to us is a table of their names here.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, TypeVar

from sbf_service.drivers.contract import DeviceLogin
from sbf_service.drivers.transport.device_session import SESSION_LOST
from sbf_service.drivers.transport.ssh import split_address
from virtcloud.model.errors import ElementError, Refused, Unreachable, Unsafe

T = TypeVar("T")

COMMIT_PATIENCE = 3
"""A commit may take so many times as long as an answer otherwise."""
QUOTED_CHARACTERS = 300

UNKNOWN_DEVICE = frozenset({"SSHUnknownHostError", "BadHostKeyException"})
DENIED = frozenset({"ConnectAuthError", "AuthenticationError", "NetmikoAuthenticationException"})
LOCKED = frozenset({"LockError", "SessionLockedException"})
LOCK_ERROR_TAGS = ("lock-denied", "in-use")
"""NETCONF's tags of errors (RFC 6241, appendix A)."""
UNREACHABLE = frozenset({"RpcTimeoutError", "ConnectError", "ConnectionException", "TimeoutExpiredError", "OSError"})
REFUSED = frozenset({"MergeConfigException", "CommitError", "RpcError", "RPCError", "CommandError"})
UNPARSABLE = frozenset({"XMLSyntaxError", "JSONDecodeError"})
PHRASES = {
    "no acceptable host key": UNKNOWN_DEVICE,
    "certificate verify failed": UNKNOWN_DEVICE,
    "Unauthorized": DENIED,
    "Pending commit confirm already in process": LOCKED,
}
"""What is told by words only; a host whose key is of another kind than the known one is refused before it shows it."""


class NapalmSession:
    """One device's session, kept between questions. ``port`` is where such devices listen unless told otherwise."""

    port: ClassVar[int]

    def __init__(self, login: DeviceLogin) -> None:
        """Remember how to reach the device; nothing is connected."""
        self._login = login
        self._driver: Any = None
        self._changing = False

    def close(self) -> None:
        """End the session; may be repeated, and never raises."""
        driver, self._driver = self._driver, None
        self._changing = False
        if driver is not None:
            with suppress(Exception):
                self.hang_up(driver)

    def is_lost(self) -> bool:
        """Return whether a session was there and has ended by itself. Nothing is sent, and nothing raised."""
        driver = self._driver
        with suppress(Exception):
            return driver is not None and not self.is_alive(driver)
        return True

    def stranger(self) -> str:
        """Say what is not known of a device that is not the one we know."""
        return (
            f"an SSH host key that {self._login.known_hosts} does not have for it: "
            "nothing was said to it; if the device was replaced, put its new key there (ssh-keyscan)"
        )

    def connect(self, host: str, port: int, password: str) -> Any:  # noqa: ANN401 - NAPALM has no types
        """Make NAPALM's driver and open it."""
        raise NotImplementedError

    def hang_up(self, driver: Any) -> None:  # noqa: ANN401
        """Close the connection without a good-bye: a device that hangs never answers it."""
        raise NotImplementedError

    def sever(self, driver: Any) -> None:  # noqa: ANN401
        """End the connection at once, for a thread that does not use it; what waits for an answer fails."""
        self.hang_up(driver)

    def is_alive(self, driver: Any) -> bool:  # noqa: ANN401
        """Say whether a kept session can still be spoken to."""
        return bool(driver.is_alive()["is_alive"])

    def guarded(self, talk: Callable[[Any], T]) -> T:
        """Connect if need be and talk; foreign errors end here, and so does the session where they leave it unclear."""
        try:
            self._login.wire.check()
            return talk(self._connected())
        except ElementError:
            raise
        except Exception as error:
            wire = self._login.wire
            ours = self._ours(error) if wire.left else Unreachable(f"{self._whom()}: {wire.why}; it is tried again")
            if not isinstance(ours, Refused):
                self.close()
            raise ours from error

    def _connected(self) -> Any:  # noqa: ANN401
        if self._driver is not None and not self.is_alive(self._driver):
            self.close()
            raise Unreachable(f"{self._whom()} {SESSION_LOST}")
        if self._driver is None:
            login = self._login
            host, port = split_address(login.device.address or "", self.port)
            self._driver = self.connect(host, port, login.password.reveal() if login.password else "")
            login.wire.attach(partial(self.sever, self._driver))
        return self._driver

    def _ours(self, error: Exception) -> ElementError:
        """Return what a foreign error means to us; the first one in its chain that has a meaning decides."""
        chain = list(_iterate_causes(error))
        meanings = ((kind, one) for one in chain for kind in _find_meanings(one))
        kind, decisive = next(meanings, (UNREACHABLE, chain[-1]))
        said = describe_error(decisive)
        if kind is UNKNOWN_DEVICE:
            return Unsafe(f"{self._whom()} shows {self.stranger()}")
        if kind is DENIED:
            return Refused(f"{self._whom()} does not let {self._login.username!r} in: check the credential")
        if kind is LOCKED:
            return Unreachable(f"{self._whom()} is being configured by somebody else: {said}; it is tried again")
        if kind is UNPARSABLE:
            return Unsafe(f"{self._whom()}: its answer is not understood: {said}; it was left alone")
        if kind is REFUSED:
            return Refused(f"switch {self._login.device.name}: the switch said {said!r}")
        return Unreachable(f"{self._whom()} does not answer: {said}; it is tried again")

    def _whom(self) -> str:
        return f"switch {self._login.device.name} ({self._login.device.address or 'without an address'})"


def describe_error(error: BaseException) -> str:
    """Give what the device said: libraries hide it in lists of dictionaries and in attributes."""
    first = error.args[0] if error.args and not isinstance(error, OSError) else str(error)
    if isinstance(first, list):
        first = "; ".join(str(one.get("message") or one) if isinstance(one, dict) else str(one) for one in first)
    holder = re.search(r"<session-id>(\d+)<", str(getattr(error, "info", None) or ""))
    said = getattr(error, "message", None) or (f"session {holder[1]} holds the lock" if holder else first)
    said = said or type(error).__name__
    return " ".join(str(said).split())[:QUOTED_CHARACTERS]


def _iterate_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = getattr(error, "_orig", None) or error.__cause__ or error.__context__


def _find_meanings(error: BaseException) -> Iterator[frozenset[str]]:
    """Give the meaning of an exception: that of its words, or of the nearest of its classes that has one."""
    yield from (kind for phrase, kind in PHRASES.items() if phrase in str(error))
    if getattr(error, "tag", None) in LOCK_ERROR_TAGS:
        yield LOCKED
    for cls in type(error).__mro__:
        yield from (kind for kind in (UNKNOWN_DEVICE, DENIED, LOCKED, REFUSED, UNPARSABLE) if cls.__name__ in kind)
        if cls.__name__ in UNREACHABLE:
            return
