"""What is around a batch system in a scenario: SBF, switches, hosts."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Protocol

from virtcloud.client import SbfClient


class Fault(StrEnum):
    """What may happen to a host while its hook begins a job."""

    MOM_DIES = "MoM dies"
    AGENT_DIES = "agent dies"
    AGENT_HANGS = "agent hangs for longer than the hook waits"


class World(Protocol):
    """SBF, and what it configures."""

    client: SbfClient
    """Speaks to SBF as an operator."""
    hosts: Sequence[str]
    """Those of the batch system."""
    patience: float
    """Seconds that anything may take here, at most."""
    outage: float
    """Seconds that a job must run to see the batch system's server die and come back."""

    def left(self) -> str:
        """Say what switches and hosts carry that they did not before; empty when nothing does."""

    def cut_off(self, switch: str) -> None:
        """Let a switch not answer SBF any more."""

    def reconnect(self, switch: str) -> None:
        """Let it answer again."""

    def stop_sbf(self) -> None:
        """Let SBF die."""

    def start_sbf(self) -> None:
        """Start it anew, on what it had written."""

    def kill_mom(self, host: str) -> None:
        """Let only a host's part of the batch system die."""

    def start_mom(self, host: str) -> None:
        """Start it anew."""

    def in_begin(self, host: str, fault: Fault) -> AbstractContextManager[Callable[[], None]]:
        """Let a fault happen while the host's next job begins there; gives what waits for it. Mended at the end."""

    def log(self, job: str) -> str:
        """Give what is known of a job, for a test that failed."""
