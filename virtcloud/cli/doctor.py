"""``virtcloud doctor``: check whether this machine can run a lab, or can be a host of guests."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from virtcloud.agent.host_checks import HostCheck, check_host
from virtcloud.cli import printing
from virtcloud.cli.host import AGENT_SETTINGS_FILE
from virtcloud.model.errors import BadInput

if TYPE_CHECKING:  # a host of guests has no package virtcloud.lab
    from virtcloud.lab.prerequisites import Diagnosis, Prerequisite

NO_LAB = (
    "virtcloud is installed without the lab; to check this machine as a host of guests, use: virtcloud doctor --host; "
    "to run a lab here, install it with: pip install 'virtcloud[lab]'; or, in a clone of virtcloud: make setup"
)
KERNEL_SUMMARIES = {
    "direct": "a lab runs directly on this machine's kernel",
    "uml": "a lab runs in User-mode Linux, because this machine's kernel lacks a feature",
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
    """Check whether this machine can run a lab or, with --host, can be a host of guests.

    The command changes nothing. The exit code is 1 if this machine cannot run a lab or, with --host, cannot run the
    guests of a cluster.
    """
    if host:
        sys.exit(_check_host(config, as_json=as_json))
    diagnosis = _diagnose()
    if as_json:
        findings = [asdict(finding) for finding in diagnosis.findings]
        document = {"kernel": diagnosis.kernel, "healthy": diagnosis.healthy, "findings": findings}
        click.echo(json.dumps(document, indent=2))
    else:
        _print_diagnosis(diagnosis)
    sys.exit(0 if diagnosis.healthy else 1)


def _diagnose() -> "Diagnosis":
    try:
        from virtcloud.lab.prerequisites import diagnose  # noqa: PLC0415 - hosts of guests have no lab
    except ModuleNotFoundError as error:
        raise BadInput(NO_LAB) from error
    return diagnose()


def _print_diagnosis(diagnosis: "Diagnosis") -> None:
    rows = [
        (finding.group, finding.name, _format_presence(finding), "" if finding.present else finding.remedy)
        for finding in diagnosis.findings
    ]
    printing.print_table(("", "requirement", "present", "remedy"), rows, "no requirements")
    missing = [finding.name for finding in diagnosis.findings if finding.needed and not finding.present]
    summary = KERNEL_SUMMARIES[diagnosis.kernel]
    click.echo(f"{summary}, after installing: {', '.join(missing)}" if diagnosis.kernel and missing else summary)


def _format_presence(finding: "Prerequisite") -> str:
    if finding.present:
        return "yes"
    return "no" if finding.needed else "no (optional)"


def _check_host(config: Path, *, as_json: bool) -> int:
    checks = check_host(config)
    failed = [check for check in checks if check.required and not check.ok]
    if as_json:
        document = {"healthy": not failed, "checks": [asdict(check) for check in checks]}
        click.echo(json.dumps(document, indent=2))
    else:
        _print_checks(checks, failed)
    return 1 if failed else 0


def _print_checks(checks: Sequence[HostCheck], failed: Sequence[HostCheck]) -> None:
    for number, check in enumerate(checks, 1):
        mark = "ok  " if check.ok else "NO  " if check.required else "warn"
        click.echo(f"{mark} {check.group}: {check.name}" + (f": {check.observation}" if check.observation else ""))
        is_last = all(other.ok or other.remedy != check.remedy for other in checks[number : number + 1])
        if not check.ok and check.remedy and is_last:
            click.echo(f"     -> {check.remedy}")
    names = ", ".join(f"{check.group} ({check.name})" for check in failed)
    click.echo(f"this host is not ready for clusters: {names}" if failed else "this host is ready for clusters")
