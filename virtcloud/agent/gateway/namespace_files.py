"""The files ``<folder>/<cluster ID>`` at which a gateway's network namespaces are mounted (compare ip-netns(8)).

A mounted namespace remains when the agent ends. After a reboot, a file may exist without a mounted namespace.
"""

import ctypes
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from virtcloud.agent import log
from virtcloud.agent.files import refuse_os_errors
from virtcloud.agent.gateway.namespace_program import SEARCH_PATH
from virtcloud.model.errors import NotFound, Refused

NS_GET_NSTYPE: Final = 0xB703  # linux/nsfs.h, ioctl_ns(2)
CLONE_NEWNET: Final = 0x40000000
MNT_DETACH: Final = 2  # umount2(2)
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class NamespaceFiles:
    """The network namespaces that are mounted at files in one folder.

    The parameter ``cluster`` is the ID of the cluster that created the network.
    """

    def __init__(self, folder: Path) -> None:
        """Store ``folder``, which contains the files."""
        self._folder = folder

    def list_clusters(self) -> set[str]:
        """Return the cluster IDs that have a file, even without a mounted namespace."""
        with refuse_os_errors(f"read the network namespaces in {self._folder}"):
            return {path.name for path in self._folder.iterdir()} if self._folder.exists() else set()

    @contextmanager
    def open(self, cluster: str) -> Iterator[int]:
        """Yield an open file descriptor of the namespace of a cluster's network.

        Raise NotFound if this gateway has no namespace of the network. Thread-safe.
        """
        descriptor = self._open(cluster)
        if descriptor is None:
            raise NotFound(f"this gateway has no network namespace of cluster {cluster}")
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def ensure(self, cluster: str) -> None:
        """Create a network's namespace at the network's file, unless one is mounted there.

        Raise Refused if the namespace cannot be created.
        """
        descriptor = self._open(cluster)
        if descriptor is not None:
            os.close(descriptor)
            return
        path = self._folder / cluster
        with refuse_os_errors(f"create the network namespace {path}"):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(mode=0o600)
        unshare = shutil.which("unshare", path=SEARCH_PATH)
        if unshare is None:
            raise Refused("the program unshare is missing: install the package util-linux")
        command = [unshare, f"--net={path}", sys.executable, "-I", "-S", "-c", ""]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - util-linux
        if done.returncode:
            raise Refused(f"cannot create the network namespace {path}: {done.stderr.strip()}")
        log.info("namespace_created", cluster=cluster)

    def ensure_none(self, cluster: str) -> None:
        """Unmount the namespace of a network, and remove its file. The file may be absent."""
        path = self._folder / cluster
        with refuse_os_errors(f"remove the network namespace {path}"), suppress(FileNotFoundError):
            while _LIBC.umount2(os.fsencode(path), MNT_DETACH) == 0:
                pass
            path.unlink()

    def _open(self, cluster: str) -> int | None:
        try:
            descriptor = os.open(self._folder / cluster, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        with suppress(OSError):  # raised if no namespace is mounted at the file
            if fcntl.ioctl(descriptor, NS_GET_NSTYPE) == CLONE_NEWNET:
                return descriptor
        os.close(descriptor)
        return None
