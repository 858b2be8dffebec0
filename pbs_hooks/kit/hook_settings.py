"""Settings of hooks: a JSON object whose keys and values are checked.

PBS stores the name of the settings file in ``pbs.hook_config_filename``.
"""

import json
from typing import Any, Callable, Dict, Iterator, Mapping, NamedTuple, Optional

from virtcloud.jobs.sizes import parse_seconds


class SettingsError(Exception):
    """The settings are not valid. The message has one line for each fault, with key, expectation and value."""


class SettingKey(NamedTuple):
    """A setting: ``expected`` describes the valid values, and ``read`` raises ValueError for any other value."""

    expected: str
    read: Callable[[Any], Any]
    default: Any
    meaning: str = ""


def read_text(value: Any) -> str:
    """Return ``value`` if it is a non-empty string. Raise ValueError for any other value."""
    if not isinstance(value, str) or not value:
        raise ValueError(value)
    return value


def read_optional_path(value: Any) -> Optional[str]:
    """Return ``value`` if it is an absolute path or None. Raise ValueError for any other value."""
    if value is not None and not read_text(value).startswith("/"):
        raise ValueError(value)
    return None if value is None else read_text(value)


def read_path(value: Any) -> str:
    """Return ``value`` if it is an absolute path. Raise ValueError for any other value."""
    return str(read_optional_path(read_text(value)))


def read_address(value: Any) -> str:
    """Return the address of SBF without a trailing slash.

    Raise ValueError unless the value begins with ``http://``, ``https://`` or ``unix:///``.
    """
    if not read_text(value).startswith(("http://", "https://", "unix:///")):
        raise ValueError(value)
    return read_text(value).rstrip("/")


def read_duration(value: Any) -> int:
    """Parse a duration in PBS's notation and return seconds.

    Raise ValueError for another notation, or for less than one second.
    """
    seconds = parse_seconds(read_text(value))
    if seconds < 1:
        raise ValueError(value)
    return seconds


def seconds_between(lowest: float, highest: float) -> Callable[[Any], Any]:
    """Return a parser of seconds from ``lowest`` to ``highest``. The parser raises ValueError for any other value."""

    def read(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not lowest <= value <= highest:
            raise ValueError(value)
        return value

    return read


def read_flag(value: Any) -> bool:
    """Return ``value`` if it is a bool. Raise ValueError for any other value."""
    if not isinstance(value, bool):
        raise ValueError(value)  # noqa: TRY004 - the error of every parser of settings
    return value


def read_names(value: Any) -> Dict[str, str]:
    """Return ``value`` if it is a JSON object whose values are strings. Raise ValueError for any other value."""
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ValueError(value)
    return value


USER_KEYS_SETTING = SettingKey(
    "true or false",
    read_flag,
    True,
    "Whether the public SSH keys in the user's folder ~/.ssh on this host may log in to the job's guests.",
)


def read_settings(
    file: Optional[str], keys: Mapping[str, SettingKey], subject: str = "the hook's", *, required: bool = True
) -> Dict[str, Any]:
    """Read and validate a settings file. Return the defaults if ``file`` is None, or missing and not ``required``.

    Raise SettingsError if the file cannot be read, or if a setting is invalid.
    """
    if file is None:
        return validate_settings({}, keys, subject)
    try:
        with open(file, encoding="utf-8") as opened:
            values = json.load(opened)
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError) and not required:
            return validate_settings({}, keys, subject)
        raise SettingsError(
            "%s settings: expected a file with a JSON object, got %s: %s" % (subject, file, error)
        ) from None
    return validate_settings(values, keys, subject)


def validate_settings(values: Any, keys: Mapping[str, SettingKey], subject: str = "the hook's") -> Dict[str, Any]:
    """Return the value of every setting. Raise SettingsError with one line for each fault."""
    if not isinstance(values, dict):
        raise SettingsError("%s settings: expected a JSON object, got %r" % (subject, values))
    faults = list(_find_faults(values, keys, subject))
    if faults:
        raise SettingsError("\n".join(faults))
    return {name: key.read(values.get(name, key.default)) for name, key in keys.items()}


def _find_faults(values: Mapping[str, Any], keys: Mapping[str, SettingKey], subject: str) -> Iterator[str]:
    for name in values:
        if name not in keys:
            yield "%s settings: expected one of %s, got %r" % (subject, ", ".join(keys), name)
    for name, key in keys.items():
        value = values.get(name, key.default)
        try:
            key.read(value)
        except ValueError:
            yield "%s setting %s: expected %s, got %r" % (subject, name, key.expected, value)
