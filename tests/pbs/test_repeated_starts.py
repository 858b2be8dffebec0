"""A real OpenPBS server repeats the start of a job, or a MoM dies in ``execjob_launch``."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from batch_scenarios.openpbs_lab import RealWorld
from batch_scenarios.stage import ScenarioStage

from virtcloud.lab import addressing
from virtcloud.lab.pbs import LabPbs, scripts
from virtcloud.testing.fakepbs.batch_system import BatchJobState

pytestmark = [pytest.mark.pbs, pytest.mark.timeout(600)]
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICV4Rg1MXTHEvoTqFY3ldwZh9dYVIQFVY1pW0Sx6tWc3"
REJECT, PAUSE, PAUSED = (f"/var/spool/{name}" for name in ("reject", "pause", "paused"))
SITE_HOOK = f"""
import os, pbs, time
if os.path.exists({PAUSE!r}):
    open({PAUSED!r}, "w").close()
    time.sleep(25)
if os.path.exists({REJECT!r}):
    pbs.event().reject("not now")
"""
IN_LAUNCH = "pgrep -f '^[^ ]*/pbs_python .*execjob_launch' >/dev/null"
RECONCILER = f"$(pgrep -f '^[^ ]* -m virtcloud.cli agent --config {scripts.AGENT}')"


@pytest.fixture
def site_hook(batch: LabPbs) -> Iterator[LabPbs]:
    """Install a site's runjob hook, which runs after virtcloud's hook. Yield the batch system.

    Suspend reconciliation, because reconciliation would end the cluster of a job that waits for its repeated start.
    """
    shell(batch, f"cat > /var/spool/site_hook.py <<'END'\n{SITE_HOOK}END")
    batch.root("qmgr", "-c", "create hook site_hook event=runjob,order=950,alarm=30")
    batch.root("qmgr", "-c", "import hook site_hook application/x-python default /var/spool/site_hook.py")
    shell(batch, f"kill -STOP {RECONCILER}")
    yield batch
    shell(batch, f"kill -CONT {RECONCILER}")
    batch.root("qmgr", "-c", "delete hook site_hook")


def shell(batch: LabPbs, script: str) -> str:
    return batch.lab.run(addressing.STATION, ["sh", "-c", script], check=True).stdout


@contextmanager
def other_keys(batch: LabPbs) -> Iterator[None]:
    file = "/home/alice/.ssh/other.pub"
    shell(batch, f"echo '{KEY}' > {file}")
    try:
        yield
    finally:
        shell(batch, f"rm {file}")


def test_changed_ssh_keys_do_not_prevent_a_repeated_start(stage: ScenarioStage, site_hook: LabPbs) -> None:
    """Another hook rejects the first start, so PBS repeats the start with the same run number."""
    shell(site_hook, f"touch {REJECT}")
    job = stage.submit()
    first = stage.await_requested(job)
    stage.await_queued(job, "not now")
    with other_keys(site_hook):
        shell(site_hook, f"rm {REJECT}")
        ended = stage.await_end(job)
    view = stage.world.client.clusters(ended=True)
    attempts = [(one.id, one.attempt, len(one.spec.authorized_keys)) for one in view if one.key == job.lower()]
    assert (ended.exit_status, ended.run_version) == (0, 1)
    assert attempts == [(first.id, 1, 1)]
    stage.await_released(job)


def test_a_rerun_survives_the_death_of_the_server(stage: ScenarioStage, site_hook: LabPbs) -> None:
    """The server dies after SBF received the request for the second run. Then the user's SSH keys change."""
    job = stage.submit_started(hosts=2)
    first = stage.await_active(job)
    shell(site_hook, f"rm -f {PAUSED}; touch {PAUSE}")
    stage.batch.rerun(job)
    shell(site_hook, f"until [ -e {PAUSED} ]; do sleep 0.2; done; rm {PAUSE}")
    stage.machines.stop_server()
    with other_keys(site_hook):
        stage.machines.start_server()
        second = stage.await_active(job)
        assert (second.attempt, second.id != first.id) == (2, True)
        assert stage.await_running(job).run_version == 2
    stage.batch.delete(job)
    assert stage.await_end(job).run_version == 2
    stage.await_released(job)


def test_every_started_script_has_a_network_when_a_mom_dies(stage: ScenarioStage, world: RealWorld) -> None:
    """A dead MoM's child process may still start the script. PBS runs the job again, with the next run number."""
    host = world.hosts[0]
    script = f"until {IN_LAUNCH}; do sleep 0.02; done; kill -9 $(cat {scripts.HOME}/mom_priv/mom.lock)"
    with ThreadPoolExecutor(1) as pool:
        death = pool.submit(world.lab.run, host, ["sh", "-c", script], timeout_s=world.patience, check=True)
        job = stage.submit(hosts=2)
        death.result()
    # If the MoM started again before the server had discarded the run, the job would stay in the state R (decision 30).
    stage.await_job(job, lambda status: status.state is not BatchJobState.RUNNING or status.run_version > 1, "requeue")
    world.start_mom(host)
    ended = stage.await_end(job)
    assert (ended.exit_status, ended.run_version) == (0, 2)
    printed = stage.batch.output(job).stdout
    assert printed.count("started") in {1, 2}
    assert printed.count("VCLUSTER_VLAN=") == printed.count("started")
    stage.await_released(job)
