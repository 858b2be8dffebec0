"""Settings of hooks: a JSON object whose keys are checked.

``pbs.hook_config_filename`` contains the name of the file.
"""

import json
from typing import Any, Callable, Dict, Iterator, Mapping, NamedTuple, Optional

from virtcloud.jobs.sizes import parse_seconds


class SettingsError(Exception):
    """The settings are not valid. The message has one line for each fault, with key, expectation and value."""


class SettingKey(NamedTuple):
    """A setting: a description of the expected value, its parser (raises ValueError), its default, and its meaning."""

    expected: str
    read: Callable[[Any], Any]
    default: Any
    meaning: str = ""


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
    """Parse a duration in PBS's notation and return seconds."""
    found = parse_seconds(read_text(value))
    if found < 1:
        raise ValueError(value)
    return found


def seconds_between(lowest: float, highest: float) -> Callable[[Any], Any]:
    """Return a parser of seconds from ``lowest`` to ``highest``."""

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


def read_settings(file: Optional[str], keys: Mapping[str, SettingKey], whose: str = "the hook's") -> Dict[str, Any]:
    """Read and validate a settings file. Return the defaults if there is no file. Raises SettingsError."""
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
    """Return the value of every setting. Raise SettingsError with one line for each fault."""
    if not isinstance(given, dict):
        raise SettingsError("%s settings: expected a JSON object, got %r" % (whose, given))
    faults = list(_find_faults(given, keys, whose))
    if faults:
        raise SettingsError("\n".join(faults))
    return {name: key.read(given.get(name, key.default)) for name, key in keys.items()}


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
