"""Finds file servers that run but do not answer."""

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
"""Time limit in seconds for an answer. The limit is long, because servers run with a low priority."""
SILENCE_S: Final = 15.0
"""A server counts as hanging if it has answered no probe for this number of seconds."""
CODE: Final = (
    f"import sys; sys.path.append({str(PACKAGE_ROOT)!r}); "
    f"from {nfs_probe_program.__name__} import main; main(sys.argv[1:])"
)


class NfsProbe:
    """Probes file servers, and records since when a server has not answered."""

    def __init__(
        self,
        open_namespace: Callable[[str], AbstractContextManager[int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the probe.

        ``open_namespace`` receives the ID of a network, and opens the namespace that this gateway has for the network.
        """
        self._open_namespace = open_namespace
        self._clock = clock
        self._silent_since: dict[str, float] = {}

    def find_hanging(self, clusters: Sequence[str]) -> frozenset[str]:
        """Return the IDs of the networks whose server has answered no probe for `SILENCE_S` seconds.

        ``clusters`` contains the IDs of the networks.

        If the probe itself fails, log the error, and count all servers as answering.
        """
        began = self._clock()
        with ExitStack() as stack:
            opened = {}
            for cluster in clusters:
                with suppress(NotFound):  # `NfsServers.read` reports a missing namespace as a fault
                    opened[cluster] = stack.enter_context(self._open_namespace(cluster))
            silent = {one for one, word in zip(opened, _ask(list(opened.values())), strict=False) if word == "silent"}
        self._silent_since = {one: self._silent_since.get(one, began) for one in silent}
        return frozenset(one for one, since in self._silent_since.items() if began - since >= SILENCE_S)


def _ask(namespaces: Sequence[int]) -> list[str]:
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
