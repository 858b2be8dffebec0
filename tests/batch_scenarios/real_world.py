"""A lab as the scenarios see what is around a batch system."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from batch_scenarios.real_batch import SPOOL, RealBatch
from batch_scenarios.world import Fault
from virtcloud.client import SbfClient
from virtcloud.lab import Lab, names, services
from virtcloud.lab.observe import Snapshot, snapshot

AGENT = f"$(ss -xlpH src {services.AGENT_SOCKET} | sed 's/.*pid=\\([0-9]*\\).*/\\1/')"
BEGINS = "pgrep -f '^[^ ]*/pbs_python .*execjob_begin' >/dev/null"
FAULTS = {
    Fault.MOM_DIES: f"kill -9 $(cat {SPOOL}/mom_priv/mom.lock); kill -CONT $agent",
    Fault.AGENT_DIES: "kill -9 $agent",
    Fault.AGENT_HANGS: f"while {BEGINS}; do sleep 0.1; done; kill -CONT $agent",
}


@dataclass
class RealWorld:
    """A lab's SBF, switches and hosts."""

    lab: Lab
    batch: RealBatch
    client: SbfClient
    before: Snapshot
    hosts: Sequence[str]
    patience: float = 120.0
    outage: float = 12.0

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

    @contextmanager
    def in_begin(self, host: str, fault: Fault) -> Iterator[Callable[[], None]]:
        """Stop the agent, so that the hook waits for its answer, and go on when there is a hook that waits."""
        self._shell(host, f"kill -STOP {AGENT}")
        script = f"agent={AGENT}; until {BEGINS}; do sleep 0.05; done; {FAULTS[fault]}"
        try:
            with ThreadPoolExecutor(1) as pool:
                yield pool.submit(self._shell, host, script).result
        finally:
            self._shell(host, f"kill -CONT {AGENT} 2>/dev/null; true")
            self.lab.service(host, "agent").start()
            self.start_mom(host)

    def _shell(self, host: str, script: str) -> None:
        self.lab.run(host, ["sh", "-c", script], timeout_s=self.patience, check=True)

    def log(self, job: str) -> str:
        """Give what PBS and the agents wrote about a job."""
        return self.batch.log(job)
