"""Durations as users enter and read them: ``90s``, ``4h`` or ``1h30m``. Pure.

``virtcloud/jobs/sizes.py`` parses durations of batch systems (``168:00:00``).
"""

import math
import re

from virtcloud.model.errors import BadInput

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
MAX_DEADLINE_S = 3600
MAX_LEASE_S = 366 * 86400
MAX_TOKEN_S = 10 * 366 * 86400
MAX_LEASE_LIMIT_S = 100 * 366 * 86400
"""The maximum lease that an administrator can set as the limit of a user."""
MAX_CHARACTERS = 100
"""Maximum length of a duration as text. Without this limit, the time to parse malformed text would grow
quadratically."""
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhdw])")


def parse_duration(text: str, maximum_s: float = math.inf) -> float:
    """Parse a duration and return seconds.

    Raise BadInput if the text is malformed, or if the duration is zero or longer than ``maximum_s``.
    """
    parts = _PART.findall(text[:MAX_CHARACTERS])
    seconds = sum(float(number) * UNITS[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != text or not parts:
        raise BadInput(f"expected a duration such as 90s, 15m, 4h, 1d or 1h30m, got {text!r}")
    if not seconds:
        raise BadInput(f"expected a duration longer than zero, got {text!r}")
    if seconds > maximum_s:
        raise BadInput(f"expected a duration of at most {format_duration(maximum_s)}, got {text!r}")
    return seconds


def format_duration(seconds: float, max_parts: int = 2) -> str:
    """Format whole seconds with at most ``max_parts`` units, the largest units first: ``1h30m``."""
    remaining, parts = max(0, round(seconds)), []
    for unit, size in sorted(UNITS.items(), key=lambda item: -item[1]):
        if unit != "w" and remaining >= size:
            parts.append(f"{remaining // size}{unit}")
            remaining %= size
    return "".join(parts[:max_parts]) or "0s"
