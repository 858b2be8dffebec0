"""Recordings of switches, NetBox and OpenPBS. This module reads the conversations with switches.

``switches/NAME.yaml`` contains a switch's answers, the state that the switch's dialect must parse from these answers,
and the commands of an example change.
"""

from pathlib import Path

from virtcloud.cli.element_try import read_record

RECORDS = {path.stem: read_record(path) for path in sorted(Path(__file__).parent.glob("switches/*.yaml"))}
