"""Tests of the conditions that an OpenPBS job with a cluster must fulfil."""

import pytest

from virtcloud.jobs.openpbs_request import Chunk, JobShape, admit_pbs_job, parse_select
from virtcloud.jobs.request import parse_request
from virtcloud.jobs.request_values import RequestError
from virtcloud.jobs.sizes import format_seconds, parse_bytes, parse_seconds

WEEK_S = 7 * 86400
GOOD = JobShape(select="3:ncpus=4:mem=32gb", walltime="4:00:00")


def refusal(line: str, **changes: object) -> str:
    with pytest.raises(RequestError) as caught:
        admit_pbs_job(parse_request(line), GOOD._replace(**changes), WEEK_S)  # type: ignore[arg-type]
    return str(caught.value)


def test_the_default_place_is_one_exclusive_host_per_chunk() -> None:
    assert admit_pbs_job(parse_request("image=a"), GOOD, WEEK_S) == "scatter:excl"


@pytest.mark.parametrize("place", ["scatter:excl", "scatter:exclhost", "scatter:excl:group=rack"])
def test_a_job_that_has_exclusive_hosts_keeps_its_place(place: str) -> None:
    assert admit_pbs_job(parse_request("image=a"), GOOD._replace(place=place), WEEK_S) == place


@pytest.mark.parametrize("place", ["pack", "free:excl", "scatter", "scatter:shared"])
def test_a_job_that_may_share_a_host_is_refused(place: str) -> None:
    assert (
        refusal("image=a", place=place)
        == "vcluster: a cluster needs one exclusive host per chunk: use -l place=scatter:excl"
    )


def test_a_job_without_select_is_rejected() -> None:
    wanted = "vcluster: use -l select=N:ncpus=\u2026"
    assert refusal("image=a", select=None) == wanted
    assert refusal("image=a", nodes="3:ppn=4") == wanted
    assert refusal("image=a", select="3:ncpus") == wanted + ", got select=3:ncpus"
    assert refusal("image=a", select="\u00b2:ncpus=1") == wanted + ", got select=\u00b2:ncpus=1"


def test_a_job_array_is_refused() -> None:
    assert refusal("image=a", array=True) == "vcluster: job arrays are not supported"


def test_a_guest_larger_than_its_chunk_is_rejected() -> None:
    assert refusal("image=a:mem=64gb") == "vcluster: guest needs 64gb, the chunk has 32gb"
    assert refusal("image=a:mem=16gb:guests=3") == "vcluster: 3 guests need 48gb, the chunk has 32gb"
    assert refusal("image=a:ncpus=8") == "vcluster: guest needs ncpus=8, the chunk has ncpus=4"


def test_every_chunk_must_be_large_enough() -> None:
    assert "the chunk has 8gb" in refusal("image=a:mem=16gb", select="1:ncpus=4:mem=32gb+2:ncpus=4:mem=8gb")


def test_a_chunk_without_memory_is_large_enough() -> None:
    assert admit_pbs_job(parse_request("image=a:mem=64gb"), GOOD._replace(select="2:ncpus=4"), WEEK_S) == "scatter:excl"


@pytest.mark.parametrize("walltime", [None, "168:00:01", "0", "soon"])
def test_a_walltime_is_required_and_bounded(walltime: str | None) -> None:
    assert refusal("image=a", walltime=walltime) == "vcluster: a walltime is required, at most 168:00:00"


def test_a_select_is_read_chunk_by_chunk() -> None:
    assert parse_select("2:ncpus=4:mem=8gb+ncpus=8") == (
        Chunk(2, {"ncpus": "4", "mem": "8gb"}),
        Chunk(1, {"ncpus": "8"}),
    )


def test_sizes_and_durations_are_parsed_in_pbs_notation() -> None:
    assert [parse_bytes(text) for text in ("100", "4kb", "2MB", "3gw")] == [100, 4096, 2 << 20, 24 << 30]
    assert [parse_seconds(text) for text in ("90", "1:30", "4:00:00", "1:00:00.5")] == [90, 90, 14400, 3600]
    assert format_seconds(168 * 3600 + 61) == "168:01:01"
