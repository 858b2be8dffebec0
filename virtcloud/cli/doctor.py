"""``virtcloud doctor``: check whether this machine can run a lab, or can be a host of guests."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from virtcloud.agent.host_checks import HostCheck, check_host
from virtcloud.cli import printing
from virtcloud.cli.host import AGENT_SETTINGS_FILE
from virtcloud.lab.prerequisites import Diagnosis, Prerequisite, diagnose

KERNEL_SUMMARIES = {
    "direct": "a lab runs directly on this machine's kernel",
    "uml": "a lab runs in User-mode Linux, because this machine's kernel lacks something",
    None: "no lab can run here",
}


@click.command()
@click.option("--host", is_flag=True, help="Check this machine as a host of guests, not for a lab.")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    default=AGENT_SETTINGS_FILE,
    show_default=True,
    help="The agent's settings, for --host.",
)
@printing.json_option
def doctor(host: bool, config: Path, as_json: bool) -> None:
    """Check whether this machine can run a lab; with --host, whether it can be a host of guests. Changes nothing.

    Exit code 1 if this machine cannot run a lab or, with --host, cannot run the guests of a cluster.
    """
    if host:
        sys.exit(_check_host(config, as_json=as_json))
    diagnosis = diagnose()
    if as_json:
        findings = [asdict(one) for one in diagnosis.findings]
        document = {"kernel": diagnosis.kernel, "healthy": diagnosis.healthy, "findings": findings}
        click.echo(json.dumps(document, indent=2))
    else:
        _print_diagnosis(diagnosis)
    sys.exit(0 if diagnosis.healthy else 1)


def _print_diagnosis(diagnosis: Diagnosis) -> None:
    rows = [(one.group, one.name, _word(one), "" if one.present else one.remedy) for one in diagnosis.findings]
    printing.print_table(("", "requirement", "present", "remedy"), rows, "no requirements")
    missing = [one.name for one in diagnosis.findings if one.needed and not one.present]
    summary = KERNEL_SUMMARIES[diagnosis.kernel]
    click.echo(f"{summary}, after installing: {', '.join(missing)}" if diagnosis.kernel and missing else summary)


def _word(finding: Prerequisite) -> str:
    if finding.present:
        return "yes"
    return "no" if finding.needed else "no (optional)"


def _check_host(config: Path, *, as_json: bool) -> int:
    """Print every check of a host. Return the exit code: 1 if a required check failed."""
    checks = check_host(config)
    failed = [one for one in checks if one.required and not one.ok]
    if as_json:
        document = {"healthy": not failed, "checks": [asdict(one) for one in checks]}
        click.echo(json.dumps(document, indent=2))
    else:
        _print_checks(checks, failed)
    return 1 if failed else 0


def _print_checks(checks: Sequence[HostCheck], failed: Sequence[HostCheck]) -> None:
    """Print one line for each check, and the remedy below a failed check. Not a table, because error texts are long."""
    for one in checks:
        word = "ok  " if one.ok else "NO  " if one.required else "warn"
        click.echo(f"{word} {one.group}: {one.name}" + (f": {one.observation}" if one.observation else ""))
        if not one.ok and one.remedy:
            click.echo(f"     -> {one.remedy}")
    names = ", ".join(f"{one.group} ({one.name})" for one in failed)
    click.echo(f"this host is not ready for clusters: {names}" if failed else "this host is ready for clusters")
