"""What NETCONF sessions by NAPALM share: host keys, and hanging up."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

NETCONF_PORT = 830


@contextmanager
def ssh_config(known_hosts: Path | None) -> Iterator[str]:
    """Write an OpenSSH configuration that names the known host keys: ncclient takes the file's name from there only.

    Nobody's own configuration is read, in either case. A file of host keys that is not there has no keys.
    """
    file = known_hosts if known_hosts and known_hosts.exists() else "/dev/null"
    with NamedTemporaryFile("w", prefix="virtcloud-ssh-", suffix=".conf", encoding="utf-8") as config:
        config.write(f'Host *\n  UserKnownHostsFile "{file}"\n')
        config.flush()
        yield config.name


def hang_up(manager: Any) -> None:  # noqa: ANN401 - ncclient's
    """Close the connection under an ncclient manager; what was locked is free then, as the device sees it."""
    manager._session.close()  # noqa: SLF001 - its public close says good-bye and waits for an answer
    manager._session.join(1)  # noqa: SLF001


def text_of(element: Any) -> str:  # noqa: ANN401 - lxml's
    """Write an answer as text; what is none (PyEZ gives True for an empty one) is empty."""
    from lxml import etree  # noqa: PLC0415 - slow to load

    return str(etree.tostring(element, encoding="unicode")) if etree.iselement(element) else ""
