"""Why a job's start failed, on its way from a host to the job's comment.

A MoM sends the server no comment, but it does send a job's variables (measured). The host that runs the script leaves
its reason there, and the server's hook, to which PBS offers the job again in the same second, tells it.
"""

from typing import Any, Mapping, Optional
from urllib.parse import quote, unquote

NAME = "VCLUSTER_LAST"
TOLD = "VCLUSTER_TOLD"
LONGEST = 1000
KEPT = " :;()/"
"""What stays as it is: a comma would end the variable, a newline the line, and before a quote PBS puts a backslash."""


def written(attempt: int, text: str) -> str:
    """Give the variable's value."""
    return "%d %s" % (attempt, quote(text[:LONGEST], safe=KEPT))


def untold(variables: Mapping[str, Any], run_version: Optional[int]) -> Optional[str]:
    """Give the reason of the run before, when it has not been told yet."""
    attempt, _, text = str(variables.get(NAME, "")).partition(" ")
    if not text or attempt != str(run_version) or attempt == str(variables.get(TOLD)):
        return None
    return unquote(text)
