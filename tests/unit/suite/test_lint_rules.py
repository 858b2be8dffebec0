import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("file", "code"), [("virtcloud/model/document.py", 1), ("tests/unit/test_document.py", 0)])
def test_only_tests_may_use_the_parsers_of_pyyaml(file: str, code: int) -> None:
    ended = subprocess.run(  # noqa: S603 - runs ruff
        [sys.executable, "-m", "ruff", "check", "--select", "TID251", "--stdin-filename", file, "-"],
        input='import yaml\n\nyaml.safe_load("")\nyaml.load("", yaml.Loader)\n',
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout.count("Use YamlLoader of virtcloud.model.yaml_loader")) == (code, 2 * code)
