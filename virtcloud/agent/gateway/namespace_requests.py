"""Requests to `namespace_program`."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from virtcloud.agent import log
from virtcloud.agent.gateway import namespace_program
from virtcloud.agent.gateway.namespace_config import (
    SYSCTLS,
)
from virtcloud.agent.host_services.server_processes import PACKAGE_ROOT
from virtcloud.model.errors import Refused

LIMIT_S: Final = 30.0
"""Time limit in seconds of `namespace_program`."""


def read_states(opened: Mapping[str, int]) -> dict[str, Any]:
    """Return the states of open namespaces by cluster ID.

    If `namespace_program` fails, each state has only ``error``.
    """
    try:
        answers = run_program([{"descriptor": descriptor, "sysctls": SYSCTLS} for descriptor in opened.values()])
    except Refused as error:
        return {cluster: {"error": str(error)} for cluster in opened}
    return dict(zip(opened, answers, strict=True))


def run_program(requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Send ``requests`` to `namespace_program`, and return the answers in the same order. Raise Refused on failure."""
    module = namespace_program.__name__
    code = f"import sys; sys.path.append({str(PACKAGE_ROOT)!r}); from {module} import main; main()"
    try:
        done = subprocess.run(  # noqa: S603 - a module of this package
            [sys.executable, "-I", "-S", "-c", code],
            input=json.dumps(requests),
            capture_output=True,
            text=True,
            pass_fds=[request["descriptor"] for request in requests],
            timeout=LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused(f"cannot read or configure network namespaces: {error}") from error
    if done.returncode:
        log.warning("namespace_program_failed", stderr=done.stderr)
        reason = done.stderr.strip().rpartition("\n")[2][-300:]
        raise Refused(
            f"cannot read or configure network namespaces: {reason}; the agent's log has the whole error; if virtcloud "
            "was upgraded since the agent's start, restart the agent"
        )
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers
