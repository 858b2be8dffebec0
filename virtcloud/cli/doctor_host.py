"""``virtcloud doctor --host``: what this machine has and lacks as a host of guests."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from virtcloud.agent.host_checks import HostCheck, check_host


def doctor_host(config: Path, *, as_json: bool) -> int:
    """Print every check; return the exit code: 1 when something is missing without which no cluster runs here."""
    checks = check_host(config)
    lacking = [one for one in checks if one.needed and not one.ok]
    if as_json:
        document = {"healthy": not lacking, "checks": [asdict(one) for one in checks]}
        click.echo(json.dumps(document, indent=2))
    else:
        _show(checks, lacking)
    return 1 if lacking else 0


def _show(checks: Sequence[HostCheck], lacking: Sequence[HostCheck]) -> None:
    """Print a line for each check, and what to do below each that failed: no table, since errors are long."""
    for one in checks:
        word = "ok  " if one.ok else "NO  " if one.needed else "warn"
        click.echo(f"{word} {one.group}: {one.name}" + (f": {one.found}" if one.found else ""))
        if not one.ok and one.remedy:
            click.echo(f"     -> {one.remedy}")
    names = ", ".join(f"{one.group} ({one.name})" for one in lacking)
    click.echo(f"this host is not ready for clusters: {names}" if lacking else "this host is ready for clusters")
