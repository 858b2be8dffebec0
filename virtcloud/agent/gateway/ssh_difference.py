"""The observed sshd of a gateway, and the steps to the wanted sshd. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from virtcloud.agent.segment_step import format_faults
from virtcloud.model.ssh_access import SshServer
from virtcloud.model.wanted import HostWanted


@dataclass(frozen=True, slots=True)
class ObservedSshd:
    """The sshd of a gateway.

    ``config`` is the digest of the running sshd's files, or None if no sshd runs. ``wanted`` is the digest of the
    wanted sshd's files, or None if no sshd is wanted. ``has_remains``: records of an sshd exist.
    """

    config: str | None = None
    faults: tuple[str, ...] = ()
    wanted: str | None = None
    has_remains: bool = False


@dataclass(frozen=True, slots=True)
class RunSshd:
    """Start the sshd, or replace the running sshd, whose connections end."""

    server: SshServer
    faults: tuple[str, ...] = ()
    cluster: str = ""

    def __str__(self) -> str:
        """Describe the step."""
        return f"start the sshd at port {self.server.port}{format_faults(self.faults)}"


@dataclass(frozen=True, slots=True)
class StopSshd:
    """Stop the sshd, and remove its records. All its connections end.

    ``only_remains``: no sshd runs, but records of an sshd exist.
    """

    cluster: str = ""
    only_remains: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        """Describe the step."""
        return "stop the sshd"


SshStep = RunSshd | StopSshd


def find_sshd_changes(wanted: HostWanted, observed: ObservedSshd) -> Iterator[SshStep]:
    """Yield the steps that start or stop the sshd, or correct its faults."""
    if wanted.ssh is None:
        if observed.config is not None or observed.has_remains:
            yield StopSshd(only_remains=observed.config is None)
        return
    if observed.config is None:
        yield RunSshd(wanted.ssh)
        return
    outdated = () if observed.config == observed.wanted else ("other settings",)
    if faults := (*observed.faults, *outdated):
        yield RunSshd(wanted.ssh, faults)
