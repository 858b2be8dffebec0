import os
import re
import subprocess
import sys

import pytest

from virtcloud.lab import debian_image
from virtcloud.lab.state import LabState, find_remains

pytestmark = pytest.mark.lab

CHAPTERS = 11
LIMIT_S = 360  # the demonstration took 206 s on a machine with five runnable processes per processor


def test_the_demonstration_succeeds_and_ends_with_a_table(own_state: LabState) -> None:
    debian_image.ensure_debian_root(debian_image.LIGHT, lambda _: None)
    environment = {**os.environ, "VIRTCLOUD_LAB_STATE": str(own_state.folder), "COLUMNS": "120"}
    done = subprocess.run(
        [sys.executable, "-m", "virtcloud.cli", "lab", "demo"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    failed = re.findall(r"^ +✗ .*(?:\n(?! +[✓✗]).*){0,40}", done.stdout, re.MULTILINE)
    assert done.returncode == 0, "\n".join(failed) + done.stdout[-3000:] + done.stderr
    output, _, table = done.stdout.partition("Chapters of the demonstration")
    claims = output.count("✓")
    assert (claims > 20, output.count("✗")) == (True, 0)
    rows = re.findall(r"│ +(\d*) +│ (.+?) +│ +([\d.]+) +│ +(\d+) +│", table)
    assert [row[0] for row in rows] == [*(str(number) for number in range(1, CHAPTERS + 1)), ""]
    assert (rows[-1][1], int(rows[-1][3])) == ("all", claims)
    assert find_remains(own_state) == []
