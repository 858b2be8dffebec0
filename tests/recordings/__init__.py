"""Recorded conversations with switches: ``NAME.yaml`` is what one answered, and what its dialect makes of it."""

from pathlib import Path

from virtcloud.cli.element_try import read_record

RECORDS = {one.stem: read_record(one) for one in sorted(Path(__file__).parent.glob("*.yaml"))}
