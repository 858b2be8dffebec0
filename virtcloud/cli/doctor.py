"""``virtcloud doctor``: what this machine has and lacks for a lab."""

import json
import sys
from dataclasses import asdict

import click

from virtcloud.cli import show
from virtcloud.lab.doctor import Diagnosis, Finding, examine

VERDICTS = {
    "direct": "a lab runs here directly, on this machine's kernel",
    "uml": "a lab runs here inside User-mode Linux, since this machine's kernel lacks something",
    None: "no lab can run here",
}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def doctor(as_json: bool) -> None:
    """Say what this machine has and lacks for a lab; exit code 1 when a lab cannot run here."""
    diagnosis = examine()
    click.echo(_as_json(diagnosis)) if as_json else _show(diagnosis)
    sys.exit(0 if diagnosis.healthy else 1)


def _as_json(diagnosis: Diagnosis) -> str:
    findings = [asdict(one) for one in diagnosis.findings]
    return json.dumps({"kernel": diagnosis.kernel, "healthy": diagnosis.healthy, "findings": findings}, indent=2)


def _show(diagnosis: Diagnosis) -> None:
    rows = [(one.group, one.name, _word(one), "" if one.present else one.remedy) for one in diagnosis.findings]
    show.table(("", "what", "is it there", "what to do"), rows, "nothing")
    lacking = [one.name for one in diagnosis.findings if one.needed and not one.present]
    verdict = VERDICTS[diagnosis.kernel]
    click.echo(f"{verdict}, once there is: {', '.join(lacking)}" if diagnosis.kernel and lacking else verdict)


def _word(finding: Finding) -> str:
    if finding.present:
        return "yes"
    return "no" if finding.needed else "no (can do without)"
