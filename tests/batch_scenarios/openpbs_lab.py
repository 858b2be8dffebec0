"""OpenPBS in a lab with hosts, SBF and switches."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from batch_scenarios.stage import HostFault
from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab, addressing, node_services
from virtcloud.lab.pbs import LabPbs, as_user, scripts
from virtcloud.lab.snapshot import Snapshot, take_snapshot
from virtcloud.testing.fakepbs.batch_system import (
    BatchJobState,
    BatchRefused,
    BatchSubmission,
    JobOutput,
    JobStatus,
    NoSuchJob,
    ServerStopped,
)

HOSTS = ("brno-h1", "praha-h1", "plzen-h1")
TIMING = {"connect_timeout": 2, "read_timeout": 4, "retry_first": 0.2, "retry_most": 1, "drain_deadline": 20}
SETTINGS = {"server": {"retry_after": 3, "breaker": 2, "setup": 600}}
NODE_FAIL_REQUEUE_S = 5
SCHEDULER_ITERATION_S = 5
"""The longest time in seconds between two cycles of the scheduler. PBS's default is 600 s.

If a job's nodes are down in one cycle, the next cycle tries the job again.
"""
RECONCILIATION = {"interval": 1, "grace": 4, "grace_empty": 8}
"""Settings, in seconds, of the reconciliation, which compares jobs with clusters.

The settings are small, so that fault tests end soon. No setting limits the time that the start of a job may take.
"""
SHORT_SETUP_S = 30
"""The value of the hooks' setting ``setup``, in seconds, while a switch is unreachable and no job can start.

At all other times, the value is as long as at a real site (``SETTINGS``).
"""


SPOOL = scripts.HOME


@dataclass
class RealBatch:
    """OpenPBS in a lab. ``hosts`` are the names of the lab's nodes that run jobs."""

    pbs: LabPbs
    hosts: Sequence[str]

    def submit(self, wanted: BatchSubmission) -> str:
        options = {"select": wanted.select, "place": wanted.place, "walltime": wanted.walltime, **wanted.resources}
        words = [word for key, value in options.items() if value is not None for word in ("-l", f"{key}={value}")]
        return self._ask(as_user(wanted.user, ["qsub", *words, *(["-h"] if wanted.held else [])]), wanted.script)

    def alter(self, job: str, resources: Mapping[str, str]) -> None:
        words = [word for key, value in resources.items() for word in ("-l", f"{key}={value}")]
        self._ask([self._program("qalter"), *words, job])

    def delete(self, job: str, *, force: bool = False) -> None:
        self._ask([self._program("qdel"), *(["-W", "force"] if force else []), job])

    def rerun(self, job: str) -> None:
        self._ask([self._program("qrerun"), job])

    def status(self, job: str) -> JobStatus:
        reply = json.loads(self._ask([self._program("qstat"), "-x", "-f", "-F", "json", job]))["Jobs"][job]
        places = [slot.split("/")[0] for slot in reply.get("exec_host", "").split("+") if slot]
        return JobStatus(
            id=job,
            state=BatchJobState(reply["job_state"]),
            comment=reply.get("comment"),
            hosts=tuple(dict.fromkeys(places)),
            run_version=int(reply.get("run_version", 0)),
            exit_status=reply.get("Exit_status"),
            hold=reply.get("Hold_Types", "n"),
            execution_time=_moment(reply.get("Execution_Time")),
            resources={key: str(value) for key, value in reply.get("Resource_List", {}).items()},
        )

    def output(self, job: str) -> JobOutput:
        """Return the output of a job's script.

        While the job runs, the output is on the job's first host. Afterwards, it is in the user's home.
        """
        number, status = job.partition(".")[0], self.status(job)
        if status.state is BatchJobState.RUNNING and status.hosts:
            first = status.hosts[0]
            return JobOutput(
                self._run(first, f"cat {SPOOL}/spool/{job}.OU"), self._run(first, f"cat {SPOOL}/spool/{job}.ER")
            )
        return JobOutput(
            self._run(addressing.STATION, f"cat /home/*/*.o{number}"),
            self._run(addressing.STATION, f"cat /home/*/*.e{number}"),
        )

    def kill_host(self, name: str) -> None:
        """Kill a host's MoM, all processes of jobs, the agent and the guests. Disconnect the host's cables."""
        self.pbs.lab.service(name, "agent").kill()
        self.kill_mom(name)
        self._shell(name, "for pid in $(pgrep -u alice,bob); do kill -9 $pid; done; true")
        self._shell(
            name, "for one in $(virsh -q -c lxc:///system list --name); do virsh -c lxc:///system destroy $one; done"
        )
        self._shell(name, "for port in mgmt0 eth0; do ip link set $port down; done")

    def start_host(self, name: str) -> None:
        self._shell(name, "for port in mgmt0 eth0; do ip link set $port up; done")
        self.pbs.lab.service(name, "agent").start()
        self.start_mom(name)

    def kill_mom(self, name: str) -> None:
        """Kill only a host's MoM. The processes of jobs continue."""
        self._shell(name, f"kill -9 $(cat {SPOOL}/mom_priv/mom.lock); true")

    def start_mom(self, name: str) -> None:
        """Start the MoM if it does not run. A new MoM ends the jobs of the former MoM."""
        start = scripts.start_mom(str(self.pbs.installation.exec))
        self._shell(name, f"kill -0 $(cat {SPOOL}/mom_priv/mom.lock) 2>/dev/null || {start}")

    def stop_server(self) -> None:
        self._shell(addressing.STATION, f"kill -9 $(cat {SPOOL}/server_priv/server.lock)")

    def start_server(self) -> None:
        self.pbs.start_server(self.pbs.version())

    def log(self, job: str) -> str:
        nodes = [addressing.STATION, *self.hosts]
        messages = {node: self._run(node, f"grep -h '{job}' {SPOOL}/*_logs/* | tail -30") for node in nodes}
        return "\n".join(f"--- {node}\n{text}" for node, text in messages.items())

    def _ask(self, argv: Sequence[str], stdin: str = "") -> str:
        done = self.pbs.lab.run(addressing.STATION, argv, stdin=stdin)
        reply = done.stderr.strip()
        if "cannot connect to server" in reply or "Connection refused" in reply:
            raise ServerStopped(reply)
        if "Unknown Job Id" in reply:
            raise NoSuchJob(reply)
        if done.returncode:
            raise BatchRefused(reply)
        return done.stdout.strip()

    def _program(self, name: str) -> str:
        return str(self.pbs.installation.program(name))

    def _run(self, node: str, script: str) -> str:
        return self.pbs.lab.run(node, ["sh", "-c", script]).stdout

    def _shell(self, node: str, script: str) -> None:
        self.pbs.lab.run(node, ["sh", "-c", script], check=True)


def _moment(text: str | None) -> float | None:
    return None if text is None else time.mktime(time.strptime(text))


AGENT = f"$(ss -xlpH src {node_services.AGENT_SOCKET} | sed 's/.*pid=\\([0-9]*\\).*/\\1/')"
BEGINS = "pgrep -f '^[^ ]*/pbs_python .*execjob_begin' >/dev/null"
FAULTS = {
    HostFault.MOM_DIES: f"kill -9 $(cat {SPOOL}/mom_priv/mom.lock); kill -CONT $agent",
    HostFault.AGENT_DIES: "kill -9 $agent",
    HostFault.AGENT_HANGS: f"while {BEGINS}; do sleep 0.1; done; kill -CONT $agent",
}


@dataclass
class RealWorld:
    """The SBF, switches and hosts of a lab."""

    lab: Lab
    batch: RealBatch
    client: SbfClient
    before: Snapshot
    hosts: Sequence[str]
    patience: float = 120.0
    outage: float = 12.0

    def left(self) -> str:
        """Describe the differences of switches and hosts from their initial state. Return "" if there are none."""
        return self.before.describe_changes(take_snapshot(self.lab, self.lab.topology))

    @contextmanager
    def unreachable(self, switch: str) -> Iterator[None]:
        """Disable a switch's management interface. SBF's session hangs, as after a power failure of the switch."""
        self.batch.pbs.install_hooks({"server": {"setup": SHORT_SETUP_S}})
        try:
            self._shell(switch, "ip link set mgmt0 down")
            yield
        finally:
            self._shell(switch, "ip link set mgmt0 up")
            self.batch.pbs.install_hooks(SETTINGS)

    def stop_sbf(self) -> None:
        self.lab.service(addressing.STATION, "sbf").kill()

    def start_sbf(self) -> None:
        self.lab.service(addressing.STATION, "sbf").start()

    def kill_mom(self, host: str) -> None:
        self.batch.kill_mom(host)

    def start_mom(self, host: str) -> None:
        self.batch.start_mom(host)

    @contextmanager
    def in_begin(self, host: str, fault: HostFault) -> Iterator[Callable[[], None]]:
        """Suspend the host's agent, so that the hook ``execjob_begin`` waits for the agent. Cause the fault meanwhile.

        Yield a function that waits until the fault has been caused.
        """
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
        return self.batch.log(job)
