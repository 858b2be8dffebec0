"""Settings of hooks: a JSON object, checked key by key. PBS puts the file's name into ``pbs.hook_config_filename``."""

import json
from collections import OrderedDict
from typing import Any, Callable, Dict, Iterator, Mapping, NamedTuple, Optional

from virtcloud.jobs.sizes import parse_seconds


class SettingsError(Exception):
    """The settings are not valid; the message has a line for each fault with key, expectation and value."""


class SettingKey(NamedTuple):
    """A setting: the expected value in words, its parser (raises ValueError), its default, and its meaning."""

    expected: str
    read: Callable[[Any], Any]
    default: Any
    meaning: str = ""


class ServerSettings(NamedTuple):
    """Settings of the server hook; times are in seconds."""

    sbf: str
    token_file: Optional[str]
    ca_file: Optional[str]
    longest_walltime: int
    images: Optional[str]
    timeout: float
    breaker: float
    retry_after: int
    setup: int
    hosts: Mapping[str, str]


class MomSettings(NamedTuple):
    """Settings of the MoM hook; times are in seconds."""

    socket: str
    patience: float
    removal: float


def read_text(value: Any) -> str:
    """Return a non-empty string."""
    if not isinstance(value, str) or not value:
        raise ValueError(value)
    return value


def read_optional_path(value: Any) -> Optional[str]:
    """Return an absolute path, or None."""
    if value is not None and not read_text(value).startswith("/"):
        raise ValueError(value)
    return None if value is None else read_text(value)


def read_path(value: Any) -> str:
    """Return an absolute path."""
    return str(read_optional_path(read_text(value)))


def read_address(value: Any) -> str:
    """Return the address of SBF without a trailing slash."""
    if not read_text(value).startswith(("http://", "https://", "unix:///")):
        raise ValueError(value)
    return read_text(value).rstrip("/")


def read_duration(value: Any) -> int:
    """Parse a duration in PBS's notation; return seconds."""
    found = parse_seconds(read_text(value))
    if found < 1:
        raise ValueError(value)
    return found


def seconds_between(lowest: float, highest: float) -> Callable[[Any], Any]:
    """Return a parser of numbers from ``lowest`` to ``highest``."""

    def read(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not lowest <= value <= highest:
            raise ValueError(value)
        return value

    return read


def read_names(value: Any) -> Dict[str, str]:
    """Return an object whose values are strings."""
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise ValueError(value)
    return value


HOSTS_SETTING = SettingKey(
    "an object of PBS's names of hosts and SBF's",
    read_names,
    {},
    "Hosts that the two call by other names; without it, PBS's name up to the first dot.",
)
_PATH = "a path that starts with /, or null"
SERVER_SETTINGS = OrderedDict(
    [
        (
            "sbf",
            SettingKey(
                "SBF's address: https://host, http://host:port or unix:///path", read_address, None, "Where SBF is."
            ),
        ),
        (
            "token_file",
            SettingKey(
                _PATH, read_optional_path, "/etc/virtcloud/pbs.token", "Its token (role scheduler), readable by root."
            ),
        ),
        (
            "ca_file",
            SettingKey(
                _PATH, read_optional_path, None, "The authority that signed SBF's certificate; null: this machine's."
            ),
        ),
        (
            "longest_walltime",
            SettingKey("hours:minutes:seconds", read_duration, "168:00:00", "For jobs with a cluster."),
        ),
        (
            "images",
            SettingKey(
                "a folder that starts with /, or null",
                read_optional_path,
                None,
                "Images are looked up there at submission.",
            ),
        ),
        (
            "timeout",
            SettingKey("seconds from 0.1 to 2", seconds_between(0.1, 2), 2.0, "What all calls of one event may take."),
        ),
        (
            "breaker",
            SettingKey(
                "seconds from 1 to 3600", seconds_between(1, 3600), 60, "No call for so long after a wait in vain."
            ),
        ),
        (
            "retry_after",
            SettingKey(
                "seconds from 1 to 86400",
                seconds_between(1, 86400),
                120,
                "Until a job that could not start is tried again.",
            ),
        ),
        (
            "setup",
            SettingKey(
                "seconds from 30 to 3600",
                seconds_between(30, 3600),
                600,
                "What a cluster may take to start; in its lease.",
            ),
        ),
        ("hosts", HOSTS_SETTING),
    ]
)  # type: Mapping[str, SettingKey]
MOM_SETTINGS = OrderedDict(
    [
        (
            "socket",
            SettingKey(
                "a path that starts with /", read_path, "/run/virtcloud/agent.sock", "Where the host's agent listens."
            ),
        ),
        (
            "patience",
            SettingKey(
                "seconds from 1 to 570, below the hook's alarm",
                seconds_between(1, 570),
                540,
                "What the first host waits for the cluster.",
            ),
        ),
        (
            "removal",
            SettingKey(
                "seconds from 0 to 570, below the hook's alarm",
                seconds_between(0, 570),
                30,
                "What a job's end waits on a host until nothing of the cluster is there; then it ends all the same.",
            ),
        ),
        ("hosts", HOSTS_SETTING),
    ]
)  # type: Mapping[str, SettingKey]


def read_settings(file: Optional[str], keys: Mapping[str, SettingKey], whose: str = "the hook's") -> Dict[str, Any]:
    """Read and validate a file of settings; without a file, return the defaults. Raises SettingsError."""
    if file is None:
        return validate_settings({}, keys, whose)
    try:
        with open(file, encoding="utf-8") as opened:
            given = json.load(opened)
    except (OSError, ValueError) as error:
        raise SettingsError(
            "%s settings: expected a file with a JSON object, got %s: %s" % (whose, file, error)
        ) from None
    return validate_settings(given, keys, whose)


def validate_settings(given: Any, keys: Mapping[str, SettingKey], whose: str = "the hook's") -> Dict[str, Any]:
    """Return the value of every setting; raise SettingsError with a line for each fault."""
    if not isinstance(given, dict):
        raise SettingsError("%s settings: expected a JSON object, got %r" % (whose, given))
    faults = list(_find_faults(given, keys, whose))
    if faults:
        raise SettingsError("\n".join(faults))
    return {name: key.read(given.get(name, key.default)) for name, key in keys.items()}


def read_server_settings(file: Optional[str]) -> ServerSettings:
    """Read the settings of the server hook; raises SettingsError."""
    return ServerSettings(**read_settings(file, SERVER_SETTINGS))


def read_mom_settings(file: Optional[str]) -> MomSettings:
    """Read the settings of the MoM hook; raises SettingsError. The server hook alone uses the host names."""
    found = read_settings(file, MOM_SETTINGS)
    return MomSettings(found["socket"], found["patience"], found["removal"])


def _find_faults(given: Mapping[str, Any], keys: Mapping[str, SettingKey], whose: str) -> Iterator[str]:
    for name in given:
        if name not in keys:
            yield "%s settings: expected one of %s, got %r" % (whose, ", ".join(keys), name)
    for name, key in keys.items():
        value = given.get(name, key.default)
        try:
            key.read(value)
        except ValueError:
            yield "%s setting %s: expected %s, got %r" % (whose, name, key.expected, value)
