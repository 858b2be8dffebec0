"""``virtcloud doctor``: what this machine has and lacks for a lab, or as a host of guests."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from virtcloud.cli import printing
from virtcloud.cli.doctor_host import doctor_host
from virtcloud.cli.host import AGENT_SETTINGS_FILE as AGENT_SETTINGS
from virtcloud.lab.prerequisites import Diagnosis, Prerequisite, diagnose

KERNEL_SUMMARIES = {
    "direct": "a lab runs here directly, on this machine's kernel",
    "uml": "a lab runs here inside User-mode Linux, since this machine's kernel lacks something",
    None: "no lab can run here",
}


@click.command()
@click.option("--host", is_flag=True, help="Check this machine as a host of guests, not for a lab.")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    default=AGENT_SETTINGS,
    show_default=True,
    help="The agent's settings, for --host.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def doctor(host: bool, config: Path, as_json: bool) -> None:
    """Check what this machine has and lacks for a lab; with --host, as a host of guests.

    Exit code 1 when a lab, or a cluster, cannot run here. Nothing is changed.
    """
    if host:
        sys.exit(doctor_host(config, as_json=as_json))
    diagnosis = diagnose()
    click.echo(_as_json(diagnosis)) if as_json else _show(diagnosis)
    sys.exit(0 if diagnosis.healthy else 1)


def _as_json(diagnosis: Diagnosis) -> str:
    findings = [asdict(one) for one in diagnosis.findings]
    return json.dumps({"kernel": diagnosis.kernel, "healthy": diagnosis.healthy, "findings": findings}, indent=2)


def _show(diagnosis: Diagnosis) -> None:
    rows = [(one.group, one.name, _word(one), "" if one.present else one.remedy) for one in diagnosis.findings]
    printing.print_table(("", "what", "is it there", "what to do"), rows, "nothing")
    lacking = [one.name for one in diagnosis.findings if one.needed and not one.present]
    verdict = KERNEL_SUMMARIES[diagnosis.kernel]
    click.echo(f"{verdict}, once there is: {', '.join(lacking)}" if diagnosis.kernel and lacking else verdict)


def _word(finding: Prerequisite) -> str:
    if finding.present:
        return "yes"
    return "no" if finding.needed else "no (can do without)"
