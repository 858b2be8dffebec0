"""A job's environment in PBS (``Variable_List``, and ``env`` of a launch)."""

import re
from typing import Any, Dict

from .errors import BadAttributeValueError

READ_ONLY = frozenset(
    "PBS_ENVIRONMENT PBS_JOBDIR PBS_JOBID PBS_JOBNAME PBS_NODEFILE TMPDIR PBS_O_HOME PBS_O_HOST PBS_O_LANG "
    "PBS_O_LOGNAME PBS_O_MAIL PBS_O_PATH PBS_O_QUEUE PBS_O_SHELL PBS_O_SYSTEM PBS_O_TZ PBS_O_WORKDIR PBS_QUEUE".split()
)
LONE_BACKSLASH = r"(?<!\\)\\(?![,'\"\\])"


class pbs_env(Dict[str, Any]):
    """Names and values. PBS's own variables are read-only; a single backslash is doubled, as in PBS."""

    def __init__(self, value: Any, generic: bool = False) -> None:
        r"""Take a dict, or text such as ``A=1,B=two\,three``; with ``generic``, PBS's own variables can be set."""
        self._generic = generic
        super().__init__(_read(value) if isinstance(value, str) else value)

    def __setitem__(self, name: str, value: Any) -> None:
        """Set a variable. Raises BadAttributeValueError for a variable of PBS."""
        if name in READ_ONLY and not self._generic:
            raise BadAttributeValueError("env variable '%s' is readonly" % name)
        text = re.sub(LONE_BACKSLASH, r"\\\\", value) if isinstance(value, str) else value
        super().__setitem__(name, text)

    def __str__(self) -> str:
        """Return ``A=1,B=2``."""
        return ",".join("%s=%s" % pair for pair in self.items() if pair[1] is not None)


def _read(text: str) -> Dict[str, Any]:
    """Parse text; a backslash protects a comma."""
    pairs = (one.partition("=") for one in re.split(r"(?<!\\),", text))
    return {name: value for name, equals, value in pairs if equals}
