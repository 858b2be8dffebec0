"""An OpenPBS in a lab as the scenarios see a batch system, and its machines."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from virtcloud.lab import names
from virtcloud.lab.pbs import LabPbs, as_user, texts
from virtcloud.testing.fakepbs.batch import JobStatus, NoSuchJob, Output, Refused, ServerAway, State, Submission

SPOOL = texts.HOME


@dataclass
class RealBatch:
    """The batch system; a host is one of the lab's nodes."""

    pbs: LabPbs
    hosts: Sequence[str]

    def submit(self, wanted: Submission) -> str:
        """Submit a job as the user would, with the script on standard input."""
        asked = {"select": wanted.select, "place": wanted.place, "walltime": wanted.walltime, **wanted.resources}
        words = [word for key, value in asked.items() if value is not None for word in ("-l", f"{key}={value}")]
        return self._ask(as_user(wanted.user, ["qsub", *words, *(["-h"] if wanted.held else [])]), wanted.script)

    def alter(self, job: str, resources: Mapping[str, str]) -> None:
        """Change resources."""
        words = [word for key, value in resources.items() for word in ("-l", f"{key}={value}")]
        self._ask([self._program("qalter"), *words, job])

    def delete(self, job: str, *, force: bool = False) -> None:
        """End a job."""
        self._ask([self._program("qdel"), *(["-W", "force"] if force else []), job])

    def rerun(self, job: str) -> None:
        """Stop a job and queue it again."""
        self._ask([self._program("qrerun"), job])

    def status(self, job: str) -> JobStatus:
        """Look at a job, also at one that has ended."""
        said = json.loads(self._ask([self._program("qstat"), "-x", "-f", "-F", "json", job]))["Jobs"][job]
        places = [one.split("/")[0] for one in said.get("exec_host", "").split("+") if one]
        return JobStatus(
            id=job,
            state=State(said["job_state"]),
            comment=said.get("comment"),
            hosts=tuple(dict.fromkeys(places)),
            run_version=int(said.get("run_version", 0)),
            exit_status=said.get("Exit_status"),
            hold=said.get("Hold_Types", "n"),
            execution_time=_moment(said.get("Execution_Time")),
            resources={key: str(value) for key, value in said.get("Resource_List", {}).items()},
        )

    def output(self, job: str) -> Output:
        """Give what the script wrote: so far where it runs; once it has ended, as its user finds it at home."""
        number, status = job.partition(".")[0], self.status(job)
        if status.state is State.RUNNING and status.hosts:
            first = status.hosts[0]
            return Output(
                self._run(first, f"cat {SPOOL}/spool/{job}.OU"), self._run(first, f"cat {SPOOL}/spool/{job}.ER")
            )
        return Output(
            self._run(names.STATION, f"cat /home/*/*.o{number}"), self._run(names.STATION, f"cat /home/*/*.e{number}")
        )

    def kill_host(self, name: str) -> None:
        """Let a host die: its MoM with every process of its jobs, its agent, its guests, and its cables."""
        self.pbs.lab.service(name, "agent").kill()
        self.kill_mom(name)
        self._shell(name, "for pid in $(pgrep -u alice,bob); do kill -9 $pid; done; true")
        self._shell(
            name, "for one in $(virsh -q -c lxc:///system list --name); do virsh -c lxc:///system destroy $one; done"
        )
        self._shell(name, "for port in mgmt0 eth0; do ip link set $port down; done")

    def start_host(self, name: str) -> None:
        """Start a host anew."""
        self._shell(name, "for port in mgmt0 eth0; do ip link set $port up; done")
        self.pbs.lab.service(name, "agent").start()
        self.start_mom(name)

    def kill_mom(self, name: str) -> None:
        """Let only a host's MoM die, as a crash would; processes of jobs stay."""
        self._shell(name, f"kill -9 $(cat {SPOOL}/mom_priv/mom.lock); true")

    def start_mom(self, name: str) -> None:
        """Start it, unless it runs; what jobs it finds it ends, as a host does that was started anew."""
        self._shell(
            name, f"kill -0 $(cat {SPOOL}/mom_priv/mom.lock) 2>/dev/null || {texts.start_mom(str(self.pbs.place.exec))}"
        )

    def stop_server(self) -> None:
        """Kill the server as a crash would."""
        self._shell(names.STATION, f"kill -9 $(cat {SPOOL}/server_priv/server.lock)")

    def start_server(self) -> None:
        """Start it again."""
        self.pbs.start_server(self.pbs.version())

    def log(self, job: str) -> str:
        """Give what PBS wrote about a job, for a test that failed."""
        nodes = [names.STATION, *self.hosts]
        told = {one: self._run(one, f"grep -h '{job}' {SPOOL}/*_logs/* | tail -30") for one in nodes}
        return "\n".join(f"--- {node}\n{text}" for node, text in told.items())

    def _ask(self, argv: Sequence[str], given: str = "") -> str:
        done = self.pbs.lab.run(names.STATION, argv, given=given)
        said = done.stderr.strip()
        if "cannot connect to server" in said or "Connection refused" in said:
            raise ServerAway(said)
        if "Unknown Job Id" in said:
            raise NoSuchJob(said)
        if done.returncode:
            raise Refused(said)
        return done.stdout.strip()

    def _program(self, name: str) -> str:
        return str(self.pbs.place.program(name))

    def _run(self, node: str, script: str) -> str:
        return self.pbs.lab.run(node, ["sh", "-c", script]).stdout

    def _shell(self, node: str, script: str) -> None:
        self.pbs.lab.run(node, ["sh", "-c", script], check=True)


def _moment(text: str | None) -> float | None:
    """Read a time as qstat prints it."""
    return None if text is None else time.mktime(time.strptime(text))
