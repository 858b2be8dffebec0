"""Finds file servers that run but do not answer, for example because they wait for a lock of their own."""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Final

from virtcloud.agent import log
from virtcloud.agent.file_servers import nfs_probe_program
from virtcloud.agent.file_servers.ganesha_config import PORT
from virtcloud.agent.host_services.server_processes import PACKAGE_ROOT
from virtcloud.model.errors import NotFound

ANSWER_S: Final = 5.0
"""Time limit in seconds for an answer. The servers have a low priority."""
SILENCE_S: Final = 15.0
"""Time in seconds between the first and the last unanswered question after which a server counts as hanging."""
CODE: Final = (
    f"import sys; sys.path.append({str(PACKAGE_ROOT)!r}); "
    f"from {nfs_probe_program.__name__} import main; main(sys.argv[1:])"
)


class NfsProbe:
    """Asks file servers at each reading of the gateway."""

    def __init__(
        self,
        open_namespace: Callable[[str], AbstractContextManager[int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``open_namespace`` opens the gateway's network namespace in the network with an ID."""
        self._open_namespace = open_namespace
        self._clock = clock
        self._silent_since: dict[str, float] = {}

    def find_hanging(self, clusters: Sequence[str]) -> frozenset[str]:
        """Ask the servers of these networks. Return those that have not answered for `SILENCE_S`.

        Without an answer of the probe itself, no server counts as silent; the error is logged.
        """
        began = self._clock()
        with ExitStack() as stack:
            opened = {}
            for cluster in clusters:
                with suppress(NotFound):  # a fault that the reading of the server itself finds
                    opened[cluster] = stack.enter_context(self._open_namespace(cluster))
            silent = {one for one, word in zip(opened, _ask(list(opened.values())), strict=False) if word == "silent"}
        self._silent_since = {one: self._silent_since.get(one, began) for one in silent}
        return frozenset(one for one, since in self._silent_since.items() if began - since >= SILENCE_S)


def _ask(namespaces: Sequence[int]) -> list[str]:
    """Return the words of the program. Return none if it fails."""
    if not namespaces:
        return []
    command = [sys.executable, "-I", "-S", "-c", CODE, str(PORT), str(ANSWER_S), *map(str, namespaces)]
    limit_s = ANSWER_S + 2 * len(namespaces) + 10
    try:
        done = subprocess.run(  # noqa: S603 - a module of this package
            command, capture_output=True, text=True, pass_fds=namespaces, timeout=limit_s, check=False, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("file_servers_not_asked", error=error)
        return []
    if done.returncode:
        log.warning("file_servers_not_asked", error=done.stderr.strip()[-300:])
        return []
    return done.stdout.split()
