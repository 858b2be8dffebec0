"""Recorded conversations with switches: ``NAME.yaml`` has the answers of a switch, and what its dialect derives."""

from pathlib import Path

from virtcloud.cli.element_try import read_record

RECORDS = {one.stem: read_record(one) for one in sorted(Path(__file__).parent.glob("*.yaml"))}
