"""Torque lists 2 kB of a job's resources, in the order of their names, and leaves out what does not fit."""

import pytest
from torque_bench import REQUEST, Bench, Heard, Ran

NODES = "+".join(f"brno-h{number}.example.org:ppn=16" for number in range(1, 50))
LONG = f"neednodes={NODES},nodect=49,walltime=01:00:00"


@pytest.fixture
def long_job(bench: Bench) -> Bench:
    """A job on so many named hosts that its request is left out of the list."""
    (bench.folder / "7.SC").write_text(f"#!/bin/sh\n#PBS -l other=vcluster={REQUEST}\nhostname\n")
    return bench


def test_the_first_host_finds_the_request_in_the_jobs_script(long_job: Bench) -> None:
    """A job must not run without the cluster that it asked for."""
    assert long_job.run("prologue", LONG) == Ran(0, "")
    assert [one.method for one in long_job.heard] == ["GET", "PUT"]


def test_its_epilogue_ends_the_cluster(long_job: Bench) -> None:
    assert long_job.run("epilogue", LONG) == Ran(0, "")
    assert [one["do"] for one in long_job.asked] == ["remove"]


@pytest.mark.parametrize("script", ["#!/bin/sh\n#PBS -l other=fast\n", None])
def test_a_job_whose_script_has_none_passes(bench: Bench, script: str | None) -> None:
    if script:
        (bench.folder / "7.SC").write_text(script)
    heard: list[Heard] = []
    assert (bench.run("prologue", LONG), bench.heard) == (Ran(0, ""), heard)


def test_a_list_with_room_for_a_request_is_believed(long_job: Bench) -> None:
    """A user may alter the resources of a job that waits: its script is not asked then."""
    assert long_job.run("prologue", "nodes=1:ppn=1,walltime=01:00:00") == Ran(0, "")
    assert long_job.heard == []
