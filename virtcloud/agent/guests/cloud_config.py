"""PURE. The user's cloud-config: its parser, and its merge with the generated cloud-config.

The parser runs as root and reads a text of an untrusted user. It refuses aliases, because a few nested aliases can
stand for billions of values, and texts longer than `MAX_BYTES`.
"""

from typing import Any, Final

import yaml

from virtcloud.model.errors import Refused

HEADER: Final = "#cloud-config"
MAX_BYTES: Final = 64 * 1024
PARSER_ERRORS: Final = (yaml.YAMLError, ValueError, ArithmeticError, LookupError, AttributeError)
"""The errors of `yaml.safe_load`: a date such as 2026-13-01 raises ValueError, ``!!bool x`` raises KeyError."""

CloudConfig = dict[str, Any]


def parse_cloud_config(text: str) -> CloudConfig:
    """Return the mapping of a user's cloud-config. Raise Refused for any other text."""
    if len(text.encode()) > MAX_BYTES:
        raise Refused(f"user data: expected at most {MAX_BYTES} bytes, got {len(text.encode())}")
    first = text.partition("\n")[0].rstrip()
    if first != HEADER:
        raise Refused(f"user data:1: expected the line {HEADER!r}, got {first[:40]!r}; run scripts with runcmd")
    try:
        config = _load(text)
    except PARSER_ERRORS as error:
        raise Refused(f"user data:{_line(error)}: not YAML: {getattr(error, 'problem', None) or error}") from error
    except RecursionError as error:
        raise Refused("user data:1: expected a mapping of cloud-init's keys, got a deeply nested document") from error
    if not isinstance(config, dict) or not all(isinstance(key, str) for key in config):
        raise Refused(f"user data:1: expected a mapping of cloud-init's keys, got {_kind(config)}")
    return config


def merge_cloud_config(generated: CloudConfig, users: CloudConfig, path: str = "") -> CloudConfig:
    """Return the generated cloud-config with the user's additions. Raise Refused if a key has another kind of value.

    Lists are appended and mappings are merged. Other values of the user replace the generated values.
    """
    merged = {
        key: _merge_value(generated[key], value, f"{path}{key}") if key in generated else value
        for key, value in users.items()
    }
    return {**generated, **merged}


def _merge_value(generated: object, users: object, path: str) -> object:
    if _kind(generated) != _kind(users):
        raise Refused(f"user data: {path}: expected {_kind(generated)}, got {_kind(users)}")
    if isinstance(generated, list) and isinstance(users, list):
        return [*generated, *users]
    if isinstance(generated, dict) and isinstance(users, dict):
        return merge_cloud_config(generated, users, f"{path}.")
    return users


def _kind(value: object) -> str:
    return "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, list) else "a single value"


def _load(text: str) -> object:
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            line = event.start_mark.line + 1
            raise Refused(f"user data:{line}: expected no alias of YAML, got *{event.anchor}; repeat the value")
    return yaml.safe_load(text)


def _line(error: Exception) -> int:
    mark = getattr(error, "problem_mark", None)
    return mark.line + 1 if mark else 1
