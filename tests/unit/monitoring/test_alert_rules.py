import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from sbf_command import main as sbf
from sbf_service.http.metric_reference import FOREIGN_METRICS, list_metrics
from virtcloud.cli import main as virtcloud

ROOT = Path(__file__).parents[3]
RULE_FILES = sorted((ROOT / "monitoring/prometheus").glob("*.yml"))
DASHBOARDS = sorted((ROOT / "monitoring/grafana").glob("*.json"))
TESTS = ROOT / "monitoring/prometheus/tests/alerts.yml"
RUNBOOK = ROOT / "docs/how-to/runbook.md"
PROGRAMS = {"sbf": sbf, "virtcloud": virtcloud}


def rules() -> list[dict[str, Any]]:
    groups = [group for path in RULE_FILES for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]


ALERTS = {str(rule["alert"]): rule for rule in rules() if "alert" in rule}


def panels() -> Iterator[dict[str, Any]]:
    for path in DASHBOARDS:
        yield from json.loads(path.read_text())["panels"]


def expressions() -> Iterator[str]:
    yield from (str(rule["expr"]) for rule in rules())
    yield from (target["expr"] for panel in panels() for target in panel["targets"])


def test_rules_pass_their_tests_with_promtool() -> None:
    ended = subprocess.run(  # noqa: S603 - Prometheus' own tool
        ["promtool", "test", "rules", str(TESTS)],  # noqa: S607
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout


def test_every_alert_is_tested_with_and_without_its_fault() -> None:
    names = [test["name"] for test in yaml.safe_load(TESTS.read_text())["tests"]]
    assert sorted(names) == sorted(f"{alert} {verb}" for alert in ALERTS for verb in ("fires", "does not fire"))


def test_every_alert_has_a_section_in_the_runbook() -> None:
    sections = re.findall(r"^## (Virtcloud\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    assert sorted(sections) == sorted(ALERTS)
    for name, alert in ALERTS.items():
        assert alert["annotations"]["runbook_url"] == f"docs/how-to/runbook.md#{name.lower()}"


def test_every_section_names_meaning_cause_and_remedy() -> None:
    for section in RUNBOOK.read_text().split("\n## ")[1:]:
        found = re.findall(r"^\*\*(Meaning|Find the cause|Do|Find the cause and do)\.\*\*", section, re.MULTILINE)
        assert found in (["Meaning", "Find the cause", "Do"], ["Meaning", "Find the cause and do"]), section[:60]


def test_every_command_of_the_runbook_exists() -> None:
    for program, first, second in re.findall(r"(?<![\w-])(virtcloud|sbf) ([a-z]+)(?: ([a-z-]+))?", _commands()):
        group = PROGRAMS[program]
        command = group.get_command(click.Context(group), first)
        assert command is not None, first
        if isinstance(command, click.Group):
            assert command.get_command(click.Context(command), second) is not None, f"{first} {second}"


def _commands() -> str:
    text = RUNBOOK.read_text()
    return "\n".join([*re.findall(r"^    (\S.*)$", text, re.MULTILINE), *re.findall(r"`([^`]+)`", text)])


def test_every_metric_of_a_rule_or_dashboard_is_documented() -> None:
    documented = {metric.name for metric in list_metrics()} | FOREIGN_METRICS.keys()
    recorded = {str(rule["record"]) for rule in rules() if "record" in rule}
    for expression in expressions():
        assert find_metrics(expression) <= documented | recorded, expression


def find_metrics(expression: str) -> set[str]:
    names = re.findall(r"[a-z]+:virtcloud_[a-z0-9_:]+|\b(?:virtcloud|node|up)(?:_[a-z0-9_]+)?\b", _unquoted(expression))
    return {re.sub(r"_seconds_(bucket|count|sum)$", "_seconds", name) for name in names}


def _unquoted(expression: str) -> str:
    return re.sub(r'"[^"]*"', "", expression)


def test_metrics_are_found_in_an_expression() -> None:
    expression = 'rate(virtcloud_a_seconds_bucket{job="virtcloud_x"}[5m]) / site:virtcloud_b:ratio > up'
    assert find_metrics(expression) == {"virtcloud_a_seconds", "site:virtcloud_b:ratio", "up"}


def test_metrics_follow_the_names_of_prometheus() -> None:
    for metric in list_metrics():
        assert re.fullmatch(r"virtcloud_[a-z0-9]+(_[a-z0-9]+)*", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.meaning.endswith(".")


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_a_dashboard_has_the_structure_that_grafana_imports(path: Path) -> None:
    board = json.loads(path.read_text())
    assert (board["uid"], board["schemaVersion"]) == (path.stem, 38)
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    cells = [cell for panel in board["panels"] for cell in _cells(panel["gridPos"])]
    assert len(set(cells)) == len(cells), "panels overlap"
    for panel in board["panels"]:
        assert panel["type"] in {"timeseries", "stat", "table", "bargauge"}
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])


def _cells(position: dict[str, int]) -> list[tuple[int, int]]:
    columns = range(position["x"], position["x"] + position["w"])
    return [(x, y) for x in columns for y in range(position["y"], position["y"] + position["h"])]
