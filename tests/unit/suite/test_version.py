"""The version number of the sources. pip does not replace an installed version with sources of the same number."""

import re
import tomllib
from pathlib import Path

from virtcloud import __version__

ROOT = Path(__file__).parents[3]


def test_unreleased_sources_have_a_new_version_number() -> None:
    released = re.findall(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released
    assert __version__ not in released


def test_both_distributions_have_the_same_version_number() -> None:
    for file in ("pyproject.toml", "setup/lab_package/pyproject.toml"):
        assert tomllib.loads((ROOT / file).read_text())["project"]["version"] == __version__, file
    assert f"version: {__version__}\n" in (ROOT / "ansible/galaxy.yml").read_text()
