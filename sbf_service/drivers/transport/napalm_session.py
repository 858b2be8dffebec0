"""The base class of sessions by NAPALM.

NAPALM and its libraries (PyEZ, ncclient, pyeapi, Netmiko) are imported on the first connection. Their exception
classes, about sixty, have no common base class, so the tables of this module contain class names.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, TypeVar

from sbf_service.drivers.contract import DeviceLogin
from sbf_service.drivers.device_errors import LoginRefused, UnknownHostKey, quote_start
from sbf_service.drivers.transport.device_session import SESSION_LOST
from sbf_service.drivers.transport.ssh import split_address
from virtcloud.model.errors import ElementError, Refused, Unreachable, Unsafe

T = TypeVar("T")

REVERT_AFTER_S = 120
"""Seconds until a device reverts a commit that was not confirmed. A multiple of 60, because Junos counts minutes."""
COMMIT_PATIENCE = 3
"""The timeout of a commit, as a multiple of the usual read timeout."""

UNKNOWN_DEVICE = frozenset({"SSHUnknownHostError", "BadHostKeyException"})
DENIED = frozenset({"ConnectAuthError", "AuthenticationError", "NetmikoAuthenticationException"})
LOCKED = frozenset({"LockError", "SessionLockedException"})
LOCK_ERROR_TAGS = ("lock-denied", "in-use")
"""Error tags of NETCONF (RFC 6241, appendix A) that count as another user's lock."""
UNREACHABLE = frozenset({"RpcTimeoutError", "ConnectError", "ConnectionException", "TimeoutExpiredError", "OSError"})
REFUSED = frozenset({"MergeConfigException", "CommitError", "RpcError", "RPCError", "CommandError"})
UNPARSABLE = frozenset({"XMLSyntaxError", "JSONDecodeError"})
PHRASES = {
    "no acceptable host key": UNKNOWN_DEVICE,
    "certificate verify failed": UNKNOWN_DEVICE,
    "Unauthorized": DENIED,
    "Pending commit confirm already in process": LOCKED,
}
"""The meanings of texts in errors whose class does not show the meaning.

The first text means that the device has no host key of the known key's type.
"""


class NapalmSession:
    """A session with one device, reused between calls. ``port`` is the default TCP port."""

    port: ClassVar[int]

    def __init__(self, login: DeviceLogin) -> None:
        """Store the login. The session connects on first use."""
        self._login = login
        self._driver: Any = None
        self._is_changing = False

    def close(self) -> None:
        """End the session. Idempotent; never raises."""
        driver, self._driver = self._driver, None
        self._is_changing = False
        if driver is not None:
            with suppress(Exception):
                self.disconnect(driver)

    def is_lost(self) -> bool:
        """Return whether the device ended the session; False if there was no session. Send nothing; never raise."""
        driver = self._driver
        with suppress(Exception):
            return driver is not None and not self.is_alive(driver)
        return True

    def describe_unknown_device(self) -> str:
        """Return the finding and the remedy for a device with an unknown host key."""
        return (
            f"an SSH host key that {self._login.known_hosts} does not contain for this device: "
            "nothing was sent; if the device was replaced, add its new key to that file (ssh-keyscan)"
        )

    def connect(self, host: str, port: int, password: str) -> Any:  # noqa: ANN401 - NAPALM has no types
        """Create NAPALM's driver, and open the driver's connection."""
        raise NotImplementedError

    def disconnect(self, driver: Any) -> None:  # noqa: ANN401
        """Close the connection without a logout, because a device that hangs never answers a logout."""
        raise NotImplementedError

    def abort_connection(self, driver: Any) -> None:  # noqa: ANN401
        """End the connection immediately, from another thread. Calls that wait for an answer then fail."""
        self.disconnect(driver)

    def set_timeout(self, driver: Any, seconds: float) -> None:  # noqa: ANN401
        """Set how long the driver waits for an answer."""
        raise NotImplementedError

    def is_alive(self, driver: Any) -> bool:  # noqa: ANN401
        """Return whether an open session works."""
        return bool(driver.is_alive()["is_alive"])

    def call(self, action: Callable[[Any], T]) -> T:
        """Connect if necessary, and run ``action``.

        Raise SBF's error for an error of a library and, unless it is Refused, close the session. An ElementError of
        ``action`` is raised unchanged, and leaves the session open.
        """
        try:
            self._login.cancel_scope.check()
            return action(self._ensure_connected())
        except ElementError:
            raise
        except Exception as error:
            scope = self._login.cancel_scope
            expired = Unreachable(f"{self._describe_device()}: {scope.reason}; SBF tries again")
            translated = self._translate(error) if scope.remaining else expired
            if not isinstance(translated, Refused):
                self.close()
            raise translated from error

    def call_patiently(self, action: Callable[[Any], object]) -> None:
        """Run ``action`` with the timeout of a commit."""

        def patient(driver: Any) -> None:  # noqa: ANN401
            self.set_timeout(driver, self._login.read_timeout * COMMIT_PATIENCE)
            action(driver)
            self.set_timeout(driver, self._login.read_timeout)

        self.call(patient)

    def build_pending_commit_error(self) -> Unreachable:
        """Return the error for a reading that finds an unconfirmed commit of another session or user."""
        reason = "a commit is unconfirmed and may be reverted"
        return Unreachable(f"{self._describe_device()} is being configured: {reason}; SBF reads the device again")

    def _ensure_connected(self) -> Any:  # noqa: ANN401
        if self._driver is not None and not self.is_alive(self._driver):
            self.close()
            raise Unreachable(f"{self._describe_device()} {SESSION_LOST}")
        if self._driver is None:
            login = self._login
            host, port = split_address(login.device.address, self.port)
            self._driver = self.connect(host, port, login.password.get_secret_value() if login.password else "")
            login.cancel_scope.attach(partial(self.abort_connection, self._driver))
        return self._driver

    def _translate(self, error: Exception) -> ElementError:
        """Return SBF's error for an error of a library.

        The first cause with a meaning (:func:`_find_meanings`) determines the error. If no cause has a meaning, return
        Unreachable.
        """
        chain = list(_iterate_causes(error))
        meanings = ((kind, cause) for cause in chain for kind in _find_meanings(cause))
        kind, decisive = next(meanings, (UNREACHABLE, chain[-1]))
        text, device = describe_error(decisive), self._describe_device()
        if kind is UNKNOWN_DEVICE:
            return UnknownHostKey(f"{device} shows {self.describe_unknown_device()}")
        if kind is DENIED:
            return LoginRefused(f"{device} refuses the login of {self._login.username!r}: check the credential")
        if kind is LOCKED:
            return Unreachable(f"{device} is being configured by another user: {text}; SBF tries again")
        if kind is UNPARSABLE:
            return Unsafe(f"{device}: cannot parse the answer: {text}; the device was left unchanged")
        if kind is REFUSED:
            return Refused(f"switch {self._login.device.name}: the switch answered {text!r}")
        return Unreachable(f"{device} does not answer: {text}; SBF tries again")

    def _describe_device(self) -> str:
        return f"switch {self._login.device.name} ({self._login.device.address or 'without an address'})"


def describe_error(error: BaseException) -> str:
    """Return the device's message, which libraries store in lists of dictionaries or in attributes of the error."""
    first = error.args[0] if error.args and not isinstance(error, OSError) else str(error)
    if isinstance(first, list):
        first = "; ".join(str(item.get("message") or item) if isinstance(item, dict) else str(item) for item in first)
    holder = re.search(r"<session-id>(\d+)<", str(getattr(error, "info", None) or ""))
    text = getattr(error, "message", None) or (f"session {holder[1]} holds the lock" if holder else first)
    return quote_start(str(text or type(error).__name__))


def _iterate_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = getattr(error, "_orig", None) or error.__cause__ or error.__context__


def _find_meanings(error: BaseException) -> Iterator[frozenset[str]]:
    """Yield the meanings of an error. A meaning is one of this module's tables, such as ``LOCKED``.

    The meanings of text and tag come first, then those of the class and its base classes. The base classes of a class
    in ``UNREACHABLE`` do not count: PyEZ's ``RpcTimeoutError`` is also an ``RpcError``.
    """
    yield from (kind for phrase, kind in PHRASES.items() if phrase in str(error))
    if getattr(error, "tag", None) in LOCK_ERROR_TAGS:
        yield LOCKED
    for cls in type(error).__mro__:
        yield from (kind for kind in (UNKNOWN_DEVICE, DENIED, LOCKED, REFUSED, UNPARSABLE) if cls.__name__ in kind)
        if cls.__name__ in UNREACHABLE:
            return
