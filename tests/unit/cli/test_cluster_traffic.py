import json

import pytest
from support.cli_calls import RunCommand
from support.fake_machine.clusters import FakeSbf

RATES = [
    {"ends": f"2026-11-24T00:0{minute}:00Z", "seconds": 30.0, "received_bytes": received, "sent_bytes": 10.0}
    | {"received_frames": 1.5, "sent_frames": 0.5}
    for minute, received in ((1, 4096.0), (2, 2048.0))
]
TRAFFIC: dict[str, object] = {
    "element": "brno-h1",
    "site": "brno",
    "reported_at": "2026-11-24T00:02:00Z",
    "rates": RATES,
}


@pytest.fixture
def demo(run: RunCommand) -> None:
    run("cluster", "create", "demo", "--host", "brno-h1", "--owner", "eva", "--image", "busybox")


def split(line: str) -> list[str]:
    return [cell for cell in line.split("  ") if cell.strip()]


@pytest.mark.usefixtures("demo")
def test_the_last_and_the_highest_rates_are_printed(run: RunCommand, sbf: FakeSbf) -> None:
    sbf.traffic = [TRAFFIC]
    cells = [cell.strip() for cell in split(run("cluster", "traffic", "demo").stdout.splitlines()[1])]
    assert cells[:-1] == ["brno-h1", "brno", "2.0 KiB", "10 bytes", "2.0", "4.0 KiB", "10 bytes"]


@pytest.mark.usefixtures("demo")
def test_a_host_with_one_report_has_no_rate(run: RunCommand, sbf: FakeSbf) -> None:
    sbf.traffic = [TRAFFIC | {"rates": []}]
    assert run("cluster", "traffic", "demo").stdout.count("unknown") == 5


@pytest.mark.usefixtures("demo")
def test_json_contains_all_rates(run: RunCommand, sbf: FakeSbf) -> None:
    sbf.traffic = [TRAFFIC]
    (host,) = json.loads(run("cluster", "traffic", "demo", "--json").stdout)
    assert [rate["received_bytes"] for rate in host["rates"]] == [4096.0, 2048.0]


@pytest.mark.usefixtures("demo")
def test_cluster_show_ends_with_the_traffic(run: RunCommand, sbf: FakeSbf) -> None:
    sbf.traffic = [TRAFFIC]
    assert run("cluster", "show", "demo").stdout.splitlines()[-1].startswith("brno-h1")


@pytest.mark.usefixtures("demo")
def test_the_reason_for_missing_traffic_reports_is_printed(run: RunCommand) -> None:
    assert "no host has reported traffic yet" in run("cluster", "traffic", "demo").output
    run("cluster", "delete", "demo")
    assert "cluster demo is released: SBF deletes the counters" in run("cluster", "traffic", "demo").output
