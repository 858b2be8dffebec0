from datetime import timedelta

import pytest
from batch_fakes import NOW, cluster, job

from virtcloud.model.cluster import State
from virtcloud.scheduler.jobs import Server as PbsServer
from virtcloud.scheduler.jobs import Standing, number_of, seconds
from virtcloud.scheduler.leases import extension


@pytest.mark.parametrize(
    ("lease_s", "walltime_s", "used_s", "wanted"),
    [
        (4200, 3600, 0, None),  # as it was asked for
        (4200, 7200, 0, 8100),  # qalter -l walltime=2:00:00
        (3700, 3600, 0, 4500),
        (3720, 3600, 0, None),
        (100, 3600, 3600, 900),  # past its walltime, and not yet ended
        (1000, 3600, 3000, None),
        (700, 3600, 3000, 1500),  # it was suspended meanwhile
        (100, 0, 0, 900),  # a walltime that cannot be read
    ],
)
def test_a_lease_covers_what_is_left_of_the_walltime(
    lease_s: float, walltime_s: int, used_s: int, wanted: float | None
) -> None:
    found = extension(cluster("12.pbssrv", lease_s=lease_s), job(12, walltime_s=walltime_s, used_s=used_s), NOW)
    assert found == wanted


def test_a_lease_that_was_just_extended_is_not_extended_at_the_next_look() -> None:
    held = cluster("12.pbssrv", lease_s=8100)
    assert extension(held, job(12, walltime_s=7200, used_s=0), NOW + timedelta(seconds=600)) is None


@pytest.mark.parametrize("standing", [Standing.EXITING, Standing.PENDING, Standing.GONE, Standing.UNREADABLE])
def test_only_for_a_running_job(standing: Standing) -> None:
    assert extension(cluster("12.pbssrv", lease_s=1), job(12, standing), NOW) is None


def test_not_for_an_earlier_attempt_nor_for_a_cluster_that_is_ending() -> None:
    assert extension(cluster("12.pbssrv", lease_s=1), job(12, attempt=2), NOW) is None
    assert extension(cluster("12.pbssrv", State.DRAINING, lease_s=1), job(12), NOW) is None


@pytest.mark.parametrize(("text", "read"), [("168:00:00", 604800), ("90", 90), ("soon", 0), (None, 0), ("1:30", 90)])
def test_times_are_read_as_pbs_writes_them(text: object, read: int) -> None:
    assert seconds(text) == read


@pytest.mark.parametrize(
    ("key", "number"),
    [("12.pbssrv.example.org", "12"), ("12.pbssrv", None), ("demo", None), ("12.other.example.org", None)],
)
def test_a_cluster_is_a_jobs_of_this_server_by_its_key(key: str, number: str | None) -> None:
    assert number_of(key, PbsServer("PBSsrv.example.org", empty=False)) == number
