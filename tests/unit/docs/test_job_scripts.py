"""Tests of the examples bandwidth.pbs and bandwidth.torque. Each test sets the output of a fake ssh."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from pbs_hooks.torque.scripts.script_settings import ScriptSettings, read_script_settings
from pbs_hooks.torque.scripts.submit_filter import filter_submission
from virtcloud.jobs.request_values import RequestError

EXAMPLES = Path(__file__).parents[3] / "docs/examples"
SCRIPT, TORQUE_SCRIPT = EXAMPLES / "bandwidth.pbs", EXAMPLES / "bandwidth.torque"
SSH = """#!/bin/sh
# The arguments are: -F FILE -o BatchMode=yes GUEST COMMAND. The script of the test is in $SSH_ANSWERS.
shift 4; guest=$1; shift
case "$1" in cat*) cat > /dev/null; step=copy ;; *) step=mpirun ;; esac
eval "$SSH_ANSWERS"
"""
LOGIN = '[ $step = mpirun ] || { echo "alice at $guest"; exit 0; }\n'
MEASURED = "echo 'g1 - g2: 900 Mbit/s'\n"


@dataclass
class JobScript:
    """The script in a folder with bandwidth.py, and the environment of a job with two guests."""

    folder: Path
    environment: dict[str, str]
    script: Path = SCRIPT

    def run(self, answers: str, **changes: str) -> tuple[int, str, str]:
        environment = self.environment | {"SSH_ANSWERS": answers} | changes
        done = subprocess.run(  # noqa: S603 - our own script
            ["/bin/bash", self.script], env=environment, cwd=self.folder, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def job(tmp_path: Path) -> JobScript:
    (tmp_path / "bandwidth.py").touch()
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "ssh").write_text(SSH)
    (programs / "ssh").chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    cluster = {"VCLUSTER_GUESTS": "g1 g2", "VCLUSTER_SSH_CONFIG": "/dev/null"}
    return JobScript(tmp_path, {"PATH": path, "HOME": str(tmp_path), **cluster})


def test_logins_and_bandwidths_are_printed(job: JobScript) -> None:
    printed = "logged in as alice at g1\nlogged in as alice at g2\ng1 - g2: 900 Mbit/s\n"
    assert job.run(LOGIN + MEASURED) == (0, printed, "")


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ("exit 255", "cannot copy bandwidth.py to guest g1 (exit code 255)"),
        (LOGIN + MEASURED + "exit 3", "mpirun failed (exit code 3): g1 - g2: 900 Mbit/s"),
        (LOGIN + "echo nothing", "expected the bandwidth of 1 pairs of guests, got 0"),
        (LOGIN + "sleep 9", "mpirun failed (exit code 124): "),
    ],
)
def test_a_failed_step_is_named_and_fails_the_job(job: JobScript, answers: str, message: str) -> None:
    code, _, errors = job.run(answers, LIMIT_S="1" if "sleep" in answers else "60")
    assert (code, errors) == (1, f"bandwidth: {message}\n")


def test_a_missing_program_is_named_before_any_login(job: JobScript) -> None:
    (job.folder / "bandwidth.py").unlink()
    message = f"bandwidth: expected bandwidth.py in {job.folder}: copy it to this folder, or use qsub -W stagein\n"
    assert job.run("echo unexpected >&2") == (1, "", message)


def test_a_job_without_a_cluster_is_told_what_to_request(job: JobScript) -> None:
    message = "bandwidth: this job has no cluster: submit it with -l vcluster=image=debian\n"
    assert job.run("", VCLUSTER_GUESTS="") == (1, "", message)


def test_a_torque_job_reads_its_variables_from_a_file(job: JobScript) -> None:
    cluster = {name: job.environment.pop(name) for name in ("VCLUSTER_GUESTS", "VCLUSTER_SSH_CONFIG")}
    (job.folder / "7.torque").write_text("".join(f"export {name}='{value}'\n" for name, value in cluster.items()))
    shutil.copy(SCRIPT, job.folder)
    script = TORQUE_SCRIPT.read_text()
    assert "/run/virtcloud/torque/" in script
    job.script = job.folder / "bandwidth.torque"
    job.script.write_text(script.replace("/run/virtcloud/torque/", f"{job.folder}/"))
    printed = "logged in as alice at g1\nlogged in as alice at g2\ng1 - g2: 900 Mbit/s\n"
    assert job.run(LOGIN + MEASURED, PBS_JOBID="7.torque", PBS_O_WORKDIR=str(job.folder)) == (0, printed, "")


def test_torques_submit_filter_accepts_the_example() -> None:
    script = TORQUE_SCRIPT.read_text()

    def read_defaults() -> ScriptSettings:
        return read_script_settings("/nonexistent/torque.json")

    assert "\n#PBS -l other=vcluster=image=debian\n" in filter_submission([], script, read_defaults, {})
    with pytest.raises(RequestError, match="a walltime is required, at most"):
        filter_submission(["-l", "walltime=999:0:0"], script, read_defaults, {})
