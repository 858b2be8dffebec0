"""Tests of the example scripts for users."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from batch_scenarios.lab_batch import batch_in_lab
from support.lab.clusters import ended, remove, until
from support.lab.jobs import LabJob, create_user, open_job

from virtcloud.client.sbf import SbfClient
from virtcloud.jobs.job_cluster_spec import JobRun, build_cluster_spec, parse_network
from virtcloud.jobs.openpbs_request import JobShape, admit_pbs_job
from virtcloud.jobs.request import parse_request
from virtcloud.lab import Lab, debian_image, lab_images
from virtcloud.model.cluster import ClusterSpec
from virtcloud.testing.fakepbs import BatchJobState, BatchSubmission, FakeBatch, JobStatus

# The first test also starts the lab, and may build Debian's root file system.
pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

JOB_S = 240.0
"""The time limit of a job in the fake batch system."""
EXAMPLES = Path(__file__).parents[2] / "docs/examples"
MPIRUN = """#!/bin/sh
# Stands for mpirun: starts the program once for each slot, over ssh. Called with --hostfile FILE PROGRAM.
file=$2; shift 2
while read -r address slots; do
  ssh -n "$address" "for _ in $(seq -s ' ' "${slots#slots=}"); do $*; done"
done < "$file"
"""


def start_job(lab: Lab, client: SbfClient, example: str, run: JobRun) -> LabJob:
    options = dict(re.findall(r"^#PBS -l (\w+)=(.*)$", script(example), re.MULTILINE))
    request = parse_request(options["vcluster"])
    admit_pbs_job(
        request, JobShape(select=options["select"], place=options["place"], walltime=options["walltime"]), 7 * 86400
    )
    networks = client.clusters(network=request.net) if request.net else []
    joined = parse_network([one.model_dump(mode="json") for one in networks], run.key)
    create_user(lab, run.hosts[0], run.owner)
    spec = ClusterSpec.model_validate(build_cluster_spec(request, run, joined))
    return open_job(lab, client, run.key, run.hosts[0], spec)


def script(example: str) -> str:
    return (EXAMPLES / example).read_text()


def test_the_mpi_example_starts_its_program_in_every_guest(lab: Lab, client: SbfClient) -> None:
    """A substitute for mpirun reads the host file and starts the program over ssh, as mpirun does."""
    job = start_job(lab, client, "mpi.pbs", JobRun("31.pbs", "alice", ("brno-h1", "brno-h2", "praha-h1"), 600))
    job.run("cat > mpirun <<'END'\n" + MPIRUN + "END\nchmod +x mpirun")
    assert job.scp("mpirun g1:").returncode == 0
    done = job.run(script("mpi.pbs"), MPIRUN="./mpirun")
    remove(client, "31.pbs")
    assert (done.stdout.split(), done.stderr) == (["g1", "g1", "g2", "g2", "g3", "g3"], "")


def run_example(lab: Lab, example: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a Python example on this machine. The example runs as root, who is an operator of the lab's SBF."""
    command = (sys.executable, str(EXAMPLES / example), *map(str, arguments))
    address = {"VIRTCLOUD_URL": f"unix://{lab.sbf_socket}"}
    return subprocess.run(command, env=os.environ | address, capture_output=True, text=True, check=True, timeout=120)  # noqa: S603 - our own


def test_the_example_places_guests_and_prints_their_changes(lab: Lab) -> None:
    lines = run_example(lab, "watch.py", "watched").stdout.splitlines()
    assert lines[0] == "watched: configuring"
    assert "watched: active" in lines
    guests = [line.split()[:3] for line in lines[-3:]]
    assert [(name, address) for name, _, address in guests] == [(f"g{n}", f"10.0.0.{n}/24") for n in (1, 2, 3)]
    assert [host for _, host, _ in guests] == ["brno-h1", "praha-h1", "plzen-h1"], (
        "expected one host at each site, because the lab's hosts have equal free resources"
    )


def test_the_asyncio_example_creates_clusters_side_by_side(lab: Lab, client: SbfClient) -> None:
    lines = run_example(lab, "several.py", "one", "two").stdout.splitlines()
    assert sorted(line.split()[0] for line in lines) == ["one", "two"]
    assert [client.cluster(key).state for key in ("one", "two")] == ["released", "released"]


def test_the_collecting_example_uses_all_guests_at_once(lab: Lab, tmp_path: Path) -> None:
    lines = run_example(lab, "collect.py", "many", "busybox-ssh", str(tmp_path), str(lab.state.folder / "keys/user"))
    results = [f"g{number} computed 42" for number in (1, 2, 3)]
    assert lines.stdout.splitlines() == [*(f"g{number} exited with 0" for number in (1, 2, 3)), *results]
    assert [(tmp_path / f"g{number}/result.txt").read_text().strip() for number in (1, 2, 3)] == results


@pytest.mark.timeout(900)  # the first test on a machine builds the Debian image
def test_the_bandwidth_example_runs_in_a_batch_system(lab: Lab, client: SbfClient) -> None:
    root = debian_image.ensure_debian_root(debian_image.LIGHT, lambda _: None)
    lab_images.make_debian_image(lab.state.folder / "images", "debian", root)
    key = client.add_key("alice", (lab.state.folder / "keys/user.pub").read_text())
    hosts = ("brno-h1", "praha-h1", "plzen-h1")
    create_user(lab, hosts[0], "alice")
    lab.run(hosts[0], ["sh", "-c", "cat > /run/alice/bandwidth.py"], stdin=script("bandwidth.py"), check=True)
    with batch_in_lab(lab, client, hosts) as batch:
        status = run_to_end(batch, submission("bandwidth.pbs", "alice"))
        output = batch.output(status.id)
        until(client, status.id, ended)
    client.remove_key("alice", key.fingerprint)
    assert (status.exit_status, status.hosts, output.stderr) == (0, hosts, ""), output
    lines = [f"logged in as alice at g{n}" for n in (1, 2, 3)]
    lines += [f"g{a} - g{b}: [1-9][0-9]* Mbit/s" for a, b in ((1, 2), (1, 3), (2, 3))]
    assert re.fullmatch("\n".join(lines) + "\n", output.stdout), output


def submission(example: str, user: str) -> BatchSubmission:
    options = dict(re.findall(r"^#PBS -l (\w+)=(.*)$", script(example), re.MULTILINE))
    select, place, walltime = (options.pop(name) for name in ("select", "place", "walltime"))
    return BatchSubmission(script(example), user, select, place, walltime, options)


def run_to_end(batch: FakeBatch, wanted: BatchSubmission) -> JobStatus:
    job, deadline = batch.submit(wanted), time.monotonic() + JOB_S
    while (status := batch.status(job)).state is not BatchJobState.FINISHED:
        assert time.monotonic() < deadline, (status, batch.output(job), batch.seen)
        time.sleep(0.2)
    return status


def test_bobs_job_reads_from_alices_job_in_her_network(lab: Lab, client: SbfClient) -> None:
    offering_job = start_job(lab, client, "offer.pbs", JobRun("41.pbs", "alice", ("brno-h1",), 600))
    offered = offering_job.run(script("offer.pbs"), SERVE="0")
    joining_job = start_job(lab, client, "join.pbs", JobRun("42.pbs", "bob", ("praha-h1",), 600))
    joined = joining_job.run(script("join.pbs"))
    remove(client, "42.pbs", "41.pbs")
    assert (offered.stdout, offered.stderr) == ("g1 serves on 10.7.0.1, port 8000\n", "")
    read = "j42-g1 has 10.7.0.2\nfrom 41.pbs, for all in network shared\n"
    assert (joined.stdout, joined.stderr) == (read, "")
