"""Access from a job's script to the job's guests at two sites by real ssh and scp."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.lab.clusters import remove
from support.lab.jobs import LabJob, ask, create_user, open_job

from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab
from virtcloud.lab.snapshot import read_interfaces
from virtcloud.model.cluster import ClusterSpec

pytestmark = pytest.mark.lab

Jobs = list[LabJob]
KEYS = ("12.pbs", "13.pbs")
HEAD, OTHER = "brno-h1", "praha-h1"
GUESTS = [
    {"name": "g1", "host": HEAD, "image": "busybox-ssh", "addresses": ["10.0.0.1/24"], "cpus": 2},
    {"name": "g2", "host": OTHER, "image": "busybox-ssh", "addresses": ["10.0.0.2/24"]},
]
AWAIT_RELAYS = """for _ in $(seq 10); do
  [ "$(pgrep -fc relay_progra[m])" = $0 ] && exit 0; sleep 0.5
done; exit 1"""
SPEC = ClusterSpec.model_validate({"owner": "alice", "guests": GUESTS})


@pytest.fixture(scope="module")
def jobs(lab: Lab, client: SbfClient) -> Iterator[Jobs]:
    create_user(lab, HEAD, "alice")
    yield [open_job(lab, client, key, HEAD, SPEC) for key in KEYS]
    remove(client, *KEYS)


def test_ssh_reaches_every_guest_by_name(jobs: Jobs) -> None:
    for guest in ("g1", "g2"):
        done = jobs[0].ssh(f"{guest} hostname")
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{guest}\n", "")


def test_ssh_knows_the_host_key_of_each_guest_beforehand(jobs: Jobs) -> None:
    for guest in ("g1", "g2"):
        done = jobs[1].ssh(f"-o StrictHostKeyChecking=yes {guest} hostname")
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{guest}\n", "")


def test_scp_copies_files_in_both_directions(jobs: Jobs) -> None:
    there, back = jobs[0].scp('"$VCLUSTER_HOSTS" g2:hosts'), jobs[0].scp("g2:hosts back")
    assert (there.returncode, back.returncode) == (0, 0), there.stderr + back.stderr
    assert jobs[0].run("cat back").stdout == "10.0.0.1 g1\n10.0.0.2 g2\n"


def test_identical_jobs_reach_only_their_own_guests(jobs: Jobs) -> None:
    for number, job in enumerate(jobs):
        assert job.ssh(f"g2 'echo {number} > mine'").returncode == 0
    assert [job.ssh("g2 cat mine").stdout for job in jobs] == ["0\n", "1\n"]


def test_the_host_has_no_address_on_the_segments_of_clusters(lab: Lab, jobs: Jobs) -> None:
    found = [lab.run(HEAD, ["ip", *words]).stdout for words in (("-4", "addr"), ("route", "show", "table", "all"))]
    assert jobs
    assert "10.0.0." not in "".join(found)


def test_an_ssh_session_survives_a_restart_of_the_agent(lab: Lab, jobs: Jobs) -> None:
    agent = lab.service(HEAD, "agent")
    with ThreadPoolExecutor(1) as pool:
        session = pool.submit(jobs[0].ssh, "g2 'echo began > began; sleep 4; echo ended'")
        while jobs[0].ssh("g2 cat began").returncode:
            pass
        agent.kill()
        agent.start()
        assert jobs[0].ssh("g1 hostname").stdout == "g1\n"
        assert session.result().stdout == "ended\n"


def test_a_removed_job_leaves_no_relay(lab: Lab, client: SbfClient, jobs: Jobs) -> None:
    """A hook requests the removal of the first job only. The reconciler removes the second job's segment and relay."""
    before = read_interfaces(lab, HEAD)
    for key in ("21.pbs", "22.pbs"):
        open_job(lab, client, key, HEAD, SPEC)
    answer = ask(lab, HEAD, {"do": "remove", "cluster": "21.pbs", "attempt": 1, "wait": 30})
    remove(client, "21.pbs", "22.pbs")
    assert answer[0].get("gone"), answer
    assert read_interfaces(lab, HEAD) == before
    remaining = lab.run(HEAD, ["ls", "-A", "/run/virtcloud/jobs"]).stdout.split()
    assert {"21.pbs", ".relay-21.pbs"} & set(remaining) == set()
    relays = lab.run(HEAD, ["sh", "-c", AWAIT_RELAYS, str(len(jobs))])
    assert relays.returncode == 0, "expected only the relays of the running jobs"
