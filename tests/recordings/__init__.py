"""Recorded conversations with switches: ``NAME.yaml`` has the answers of one, and what its dialect derives from them."""

from pathlib import Path

from virtcloud.cli.element_try import read_record

RECORDS = {one.stem: read_record(one) for one in sorted(Path(__file__).parent.glob("*.yaml"))}
