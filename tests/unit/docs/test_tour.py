"""Tests of the tour of the source: all modules that the tour names exist, and a creation passes through 14 modules."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
TOUR = (ROOT / "docs/explanation/tour.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`((?:virtcloud|sbf_service|pbs_hooks)/[\w/.]+)`", TOUR)))


def test_every_module_of_the_tour_exists() -> None:
    assert [name for name in NAMED if not (ROOT / name).exists()] == []


def test_the_tour_follows_both_requests() -> None:
    assert {"sbf_service/http/routes/clusters.py", "pbs_hooks/openpbs/hooks/runjob.py"} <= set(NAMED)


def test_a_creation_of_a_cluster_passes_through_14_modules() -> None:
    section = TOUR.partition("### From HTTP to the answer 201\n")[2].partition("\n### ")[0]
    modules = set(re.findall(r"`(sbf_service/[\w/]+\.py)`", section))
    assert len(modules) == 14
