import os
from dataclasses import dataclass, field
from pathlib import Path

from virtcloud.agent.capacity import REPORT_INTERVAL_S, RETRY_S, CapacityReporter, read_capacity
from virtcloud.model.errors import BadInput, NotFound
from virtcloud.model.views import HostCapacity

SMALL, LARGE = HostCapacity(cpus=2, memory_mb=1024), HostCapacity(cpus=4, memory_mb=1024)


@dataclass
class ReportedHost:
    """A host whose capacity and clock a test changes, and an SBF that records the reports."""

    capacity: HostCapacity = SMALL
    now: float = 100.0
    knows_call: bool = True
    knows_images: bool = True
    reports: list[HostCapacity] = field(default_factory=list)

    def report_capacity(self, element: str, capacity: HostCapacity) -> None:
        assert element == "brno-h1"
        if not self.knows_call:
            raise NotFound("PUT /v1/elements/brno-h1/capacity is not known")
        if capacity.images and not self.knows_images:
            raise BadInput("images: unknown key")
        self.reports.append(capacity)

    def reporter(self) -> CapacityReporter:
        return CapacityReporter("brno-h1", self, lambda: self.capacity, lambda: self.now)


def test_an_unchanged_capacity_is_reported_once_an_hour() -> None:
    host = ReportedHost()
    reporter = host.reporter()
    for seconds in (0, 30, REPORT_INTERVAL_S - 31, 1):
        host.now += seconds
        reporter.report()
    assert host.reports == [SMALL, SMALL]


def test_a_changed_capacity_is_reported_at_once() -> None:
    host = ReportedHost()
    reporter = host.reporter()
    reporter.report()
    host.capacity = LARGE
    reporter.report()
    assert host.reports == [SMALL, LARGE]


def test_an_agent_works_with_an_sbf_without_capacity_reports() -> None:
    host = ReportedHost(knows_call=False)
    reporter = host.reporter()
    reporter.report()
    host.knows_call = True
    reporter.report()
    assert host.reports == [], "expected the next report only after a minute"
    host.now += RETRY_S
    reporter.report()
    assert host.reports == [SMALL]


def test_the_capacity_is_that_of_the_machine() -> None:
    capacity = read_capacity()
    total_kib = int(Path("/proc/meminfo").read_text(encoding="ascii").split()[1])
    assert (capacity.cpus, capacity.memory_mb) == (os.cpu_count(), total_kib // 1024)


def test_the_names_of_the_folders_images_are_reported(tmp_path: Path) -> None:
    for name in ("debian12", "busybox", "not a name", "unfinished"):
        (tmp_path / name).mkdir()
    for name in ("debian12", "busybox", "not a name"):
        (tmp_path / name / "image.yaml").touch()
    assert read_capacity(tmp_path).images == ("busybox", "debian12")


def test_an_earlier_sbf_receives_the_capacity_without_images() -> None:
    host = ReportedHost(SMALL.model_copy(update={"images": ("busybox",)}), knows_images=False)
    host.reporter().report()
    assert host.reports == [SMALL]
