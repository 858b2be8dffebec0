import re
from dataclasses import replace
from pathlib import Path

import pytest
from batch_scenarios.openpbs_lab import HOSTS, RealWorld
from batch_scenarios.stage import ScenarioStage

from virtcloud.lab import addressing, debian_image, lab_images
from virtcloud.lab.pbs import LabPbs

pytestmark = [pytest.mark.pbs, pytest.mark.timeout(900)]
EXAMPLES = Path(__file__).parents[2] / "docs/examples"
HOME = "/home/alice"
STAGE_IN = f"bandwidth.py@{addressing.STATION}:{HOME}/bandwidth.py"


WALLTIME_S = 600.0


@pytest.fixture
def patient(stage: ScenarioStage, world: RealWorld) -> ScenarioStage:
    """Return the stage, with the job's walltime as the limit of each wait, because Debian guests boot slowly."""
    return replace(stage, world=replace(world, patience=WALLTIME_S))


@pytest.fixture
def example(batch: LabPbs) -> str:
    """Write the example's files to alice's home on the batch server's host. Return the script's name.

    Also add the image ``debian``, which the script requests, to the lab.
    """
    for name in ("bandwidth.pbs", "bandwidth.py"):
        write = ["su", "alice", "-c", f"cat > {HOME}/{name}"]
        batch.lab.run(addressing.STATION, write, stdin=(EXAMPLES / name).read_text(), check=True)
    root = debian_image.ensure_debian_root(debian_image.LIGHT, lambda _: None)
    lab_images.make_debian_image(batch.lab.state.folder / "images", "debian", root)
    return "bandwidth.pbs"


def qsub(stage: ScenarioStage, batch: LabPbs, *words: str) -> str:
    submitted = batch.user("alice", ["qsub", *words])
    assert submitted.returncode == 0, submitted.stderr
    stage.jobs.append(submitted.stdout.strip())
    return stage.jobs[-1]


def test_three_sites_measure_their_bandwidth_in_one_job(patient: ScenarioStage, batch: LabPbs, example: str) -> None:
    """The guests accept the SSH key that the server's hook found in alice's home."""
    job = qsub(patient, batch, "-W", f"stagein={STAGE_IN}", example)
    ended = patient.await_end(job)
    output = patient.batch.output(job)
    print(output.stdout)  # noqa: T201 - the measured bandwidths
    assert (ended.exit_status, output.stderr) == (0, ""), output
    assert set(ended.hosts) == set(HOSTS)
    logins = re.findall(r"^logged in as (.*)$", output.stdout, re.MULTILINE)
    assert logins == ["alice at g1", "alice at g2", "alice at g3"]
    rates = dict(re.findall(r"^(g\d - g\d): (\d+) Mbit/s$", output.stdout, re.MULTILINE))
    assert sorted(rates) == ["g1 - g2", "g1 - g3", "g2 - g3"]
    assert all(int(rate) > 0 for rate in rates.values())
    patient.await_released(job)


def test_a_job_without_its_program_fails_with_the_reason(patient: ScenarioStage, batch: LabPbs, example: str) -> None:
    job = qsub(patient, batch, "-l", "vcluster=image=busybox", example)
    ended = patient.await_end(job)
    output = patient.batch.output(job)
    assert (ended.exit_status, output.stdout) == (1, "")
    assert (
        output.stderr == f"bandwidth: expected bandwidth.py in {HOME}: copy it to this folder, or use qsub -W stagein\n"
    )
    patient.await_released(job)
