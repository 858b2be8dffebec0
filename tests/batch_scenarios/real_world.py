"""A lab as the scenarios see what is around a batch system."""

from collections.abc import Sequence
from dataclasses import dataclass

from batch_scenarios.real_batch import RealBatch
from virtcloud.client import SbfClient
from virtcloud.lab import Lab, names
from virtcloud.lab.observe import Snapshot, snapshot


@dataclass
class RealWorld:
    """A lab's SBF, switches and hosts."""

    lab: Lab
    batch: RealBatch
    client: SbfClient
    before: Snapshot
    hosts: Sequence[str]
    patience: float = 120.0

    def left(self) -> str:
        """Read every switch and every host."""
        return self.before.differs(snapshot(self.lab, self.lab.topology))

    def cut_off(self, switch: str) -> None:
        """Take a switch's management interface down: SBF's session hangs, as it would with a dead switch."""
        self.lab.run(switch, ["ip", "link", "set", "mgmt0", "down"], check=True)

    def reconnect(self, switch: str) -> None:
        """Take it up."""
        self.lab.run(switch, ["ip", "link", "set", "mgmt0", "up"], check=True)

    def stop_sbf(self) -> None:
        """Kill SBF."""
        self.lab.service(names.STATION, "sbf").kill()

    def start_sbf(self) -> None:
        """Start it."""
        self.lab.service(names.STATION, "sbf").start()

    def kill_mom(self, host: str) -> None:
        """Kill a MoM."""
        self.batch.kill_mom(host)

    def start_mom(self, host: str) -> None:
        """Start it."""
        self.batch.start_mom(host)

    def log(self, job: str) -> str:
        """Give what PBS and the agents wrote about a job."""
        return self.batch.log(job)
