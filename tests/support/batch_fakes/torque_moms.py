"""Runs Torque's scripts in a lab as Torque's MoMs do: in the same order, with the same arguments, environment and user.

Torque itself is not installed. The behaviour is that of Torque's source (``prolog.c``, ``mom_comm.c``, ``mom_main.c``).
The sisters are all hosts of a job except the first. ``prologue.parallel`` runs on the sisters; ``prologue`` then runs
on the first host. ``epilogue.precancel`` runs as the job's user. The environment of the scripts is almost empty. A fake
server prints the output of ``qstat``. The real code of virtcloud confirms the jobs to SBF.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from xml.etree import ElementTree as ET

from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab
from virtcloud.lab.addressing import SBF_PORT, STATION_ADDRESS
from virtcloud.model.access import Role
from virtcloud.scheduler.command import CommandResult
from virtcloud.scheduler.job_confirmation import confirm_until_stopped
from virtcloud.scheduler.torque_adapter import TorqueScheduler

FOLDER, USER, UID = "/run/torque", "erik", 1777
SETTINGS, TOKEN, FACTS = f"{FOLDER}/torque.json", f"{FOLDER}/torque.token", f"{FOLDER}/environments"
MOM_PRIV, NODES = f"{FOLDER}/mom_priv", f"{FOLDER}/nodes"
Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True, slots=True)
class TorqueJob:
    """A job on ``hosts``. Torque would run the job's script on the first host."""

    id: str
    hosts: tuple[str, ...]
    resources: str

    @property
    def key(self) -> str:
        return self.id.lower()


def xml(job: TorqueJob) -> str:
    """Return a job as ``qstat -x`` prints it."""
    data = ET.Element("Data")
    element = ET.SubElement(data, "Job")
    nodes = "+".join(f"{host}/{number}" for host in job.hosts for number in (0, 1))
    attributes = {"Job_Id": job.id, "Job_Owner": f"{USER}@station", "job_state": "R", "exec_host": nodes, "euser": USER}
    for tag, text in attributes.items():
        ET.SubElement(element, tag).text = text
    resources = ET.SubElement(element, "Resource_List")
    for tag, text in (word.split("=", 1) for word in job.resources.split(",")):
        ET.SubElement(resources, tag).text = text
    return ET.tostring(data, encoding="unicode")


class SilentLog:
    """A log without output."""

    def info(self, event: str, **fields: object) -> None:
        """Log nothing."""

    warning = exception = info


@dataclass
class TorqueMoms:
    """The MoMs of some hosts in a lab."""

    lab: Lab
    hosts: tuple[str, ...]
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(8))

    known: dict[str, TorqueJob] = field(default_factory=dict)
    """The server's jobs by job number."""

    def qstat(self, command: Sequence[str]) -> CommandResult:
        if "-B" in command:
            return CommandResult(
                "qstat -B -f", 0, "Server: torque\n    server_state = Active\n    total_jobs = 1\n", ""
            )
        job = self.known.get(command[-1])
        return CommandResult("qstat -x", 0, xml(job), "") if job else CommandResult("qstat -x", 153, "", "")

    def install_scripts(self, client: SbfClient, patience: int = 60) -> None:
        for host in self.hosts:
            settings = {
                "sbf": f"http://{STATION_ADDRESS}:{SBF_PORT}",
                "token_file": TOKEN,
                "patience": patience,
                "environments": FACTS,
            }
            token = client.create_token(host, Role.JOB_STARTER).token
            self.shell(
                host,
                f"set -e; mkdir -p {MOM_PRIV}; grep -q ^{USER}: /etc/passwd || "
                f"echo '{USER}:x:{UID}:{UID}::/:/bin/sh' >> /etc/passwd; umask 077; echo {token} > {TOKEN}; "
                f"umask 022; echo '{json.dumps(settings)}' > {SETTINGS}; "
                f"{sys.executable} -m virtcloud.cli torque scripts --to {MOM_PRIV} --settings {SETTINGS}",
            )

    def set_patience(self, host: str, seconds: int) -> None:
        self.shell(host, f'sed -i \'s/"patience": [0-9]*/"patience": {seconds}/\' {SETTINGS}')

    def shell(self, host: str, text: str) -> str:
        return self.lab.run(host, ("sh", "-c", text), check=True).stdout

    def script(self, host: str, name: str, job: TorqueJob, around: str = "") -> Done:
        """Run a script as this host's MoM does. ``around`` is a command that starts the script, such as setpriv."""
        if name == "prologue":
            self.known[job.id.partition(".")[0]] = job
        common = [job.id, USER, USER, "job.sh"]
        prologue = [*common, job.resources, "batch", ""]
        epilogue = [*common, "4711", job.resources, "cput=00:00:01", "batch", "", "0"]
        arguments = prologue if name.startswith("prologue") else epilogue
        self.shell(host, f"printf '%s\\n' {' '.join(2 * job.hosts)} > {NODES}")
        nodes = [f"PBS_NODEFILE={NODES}"] if host == job.hosts[0] else []
        environment = [*nodes, f"PBS_MSHOST={job.hosts[0]}", f"PBS_NODENUM={job.hosts.index(host)}"]
        return self.lab.run(host, ["env", "-i", *environment, *around.split(), f"{MOM_PRIV}/{name}", *arguments])

    def sisters(self, job: TorqueJob) -> list[int]:
        """Run ``prologue.parallel`` concurrently on all hosts of a job except the first. Return the exit codes."""
        return [done.returncode for done in self._on_sisters("prologue.parallel", job)]

    def start(self, job: TorqueJob) -> Done:
        """Start a job. Return the result of the first host's prologue."""
        assert set(self.sisters(job)) <= {0}
        return self.script(job.hosts[0], "prologue", job)

    def start_in_thread(self, job: TorqueJob) -> "Future[Done]":
        return self.threads.submit(self.start, job)

    def end(self, job: TorqueJob) -> list[int]:
        first = self.threads.submit(self.script, job.hosts[0], "epilogue", job)
        sisters = self._on_sisters("epilogue.parallel", job)
        return [first.result().returncode, *(done.returncode for done in sisters)]

    def precancel(self, job: TorqueJob) -> int:
        """Run ``epilogue.precancel`` as the job's user on the job's first host, as Torque does at ``qdel``."""
        around = f"/usr/bin/setpriv --reuid {UID} --regid {UID} --clear-groups"
        return self.script(job.hosts[0], "epilogue.precancel", job, around).returncode

    def facts(self, job: TorqueJob) -> str:
        return self.shell(job.hosts[0], f"setpriv --reuid {UID} --clear-groups cat {FACTS}/{job.id}")

    def _on_sisters(self, name: str, job: TorqueJob) -> list[Done]:
        running = [self.threads.submit(self.script, host, name, job) for host in job.hosts[1:]]
        return [run.result() for run in running]


@contextmanager
def moms(lab: Lab, client: SbfClient, *hosts: str) -> Iterator[TorqueMoms]:
    """Install the scripts on these hosts. Confirm jobs to SBF while the context is open."""
    batch_hosts, stop = TorqueMoms(lab, hosts), threading.Event()
    batch_hosts.install_scripts(client)
    answers = threading.Thread(
        target=confirm_until_stopped,
        args=(TorqueScheduler(batch_hosts.qstat), client, {}, SilentLog(), stop),
        daemon=True,
    )
    answers.start()
    try:
        yield batch_hosts
    finally:
        stop.set()
        batch_hosts.threads.shutdown()


def await_that(reached: Callable[[], bool], what: str, pause: Callable[[], object]) -> None:
    """Call ``pause`` until ``reached()`` returns True. After 600 calls, raise AssertionError with ``what``."""
    for _ in range(600):
        if reached():
            return
        pause()
    raise AssertionError(f"not reached: {what}")
