"""Recorded conversations with switches.

``NAME.yaml`` contains a switch's answers and the values that its dialect parses.
"""

from pathlib import Path

from virtcloud.cli.element_try import read_record

RECORDS = {path.stem: read_record(path) for path in sorted(Path(__file__).parent.glob("*.yaml"))}
