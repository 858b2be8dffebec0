"""``virtcloud site import``: read the switches of an existing site, and propose its pool and its topology.

The drivers run in a second process, ``python -m sbf_service.survey``, because the package virtcloud does not import
sbf_service. SBF is not used, and only show commands are sent.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import click

from virtcloud.cli import printing
from virtcloud.cli.differences import format_yaml
from virtcloud.cli.element_try import run_driver_program
from virtcloud.cli.groups import SummaryCommand
from virtcloud.cli.options import NumberType, WholeNumberType, name_of
from virtcloud.model.errors import BadInput, ElementError
from virtcloud.model.message_text import count_of
from virtcloud.model.site_survey import SiteSurvey, SurveyedVlan, SurveyRequest
from virtcloud.model.values import Name
from virtcloud.model.yaml_document import parse_yaml

MODULE = "sbf_service.survey"
SHOWN_PORTS = 6
"""Maximum number of ports of a switch in one row of the table."""


@click.command("import", cls=SummaryCommand)
@click.argument("file", type=click.File(encoding="utf-8-sig", errors="surrogateescape"))
@click.option(
    "--settings",
    type=click.Path(path_type=Path),
    help="File with SBF's settings. The credentials in these settings are used in addition to the credentials in FILE.",
)
@click.option(
    "--pool-size",
    type=WholeNumberType(1, 4093),
    default=100,
    show_default=True,
    help="Number of VLAN IDs in the proposed pool.",
)
@click.option("--timeout", type=NumberType(0.1, 600), default=10, help="Seconds to wait for each answer of a switch.")
@click.option(
    "--write",
    "draft",
    metavar="DRAFT",
    type=click.Path(path_type=Path),
    help="Write the draft to this new file (YAML).",
)
@printing.json_option
def import_(  # noqa: PLR0913, PLR0917 - click passes each option by its name
    file: IO[str], settings: Path | None, pool_size: int, timeout: float, draft: Path | None, as_json: bool
) -> None:
    """Read the switches of FILE, show which VLAN IDs are in use, and propose a pool and a draft of the topology.

    The command only reads: it changes neither the switches nor SBF, and needs no SBF. FILE (YAML) contains the site's
    name, the switches, and the credentials. Each switch has an address, a platform, and the name of a credential. The
    draft contains the cables that the switches see by LLDP. If a switch could not be read completely, the output is
    incomplete and the exit code is 1. If no switch could be read, no draft is written.

    Example: virtcloud site import ostrava.yaml --write draft.yaml
    """
    if draft is not None and draft.exists():
        raise BadInput(f"--write {draft}: the file exists; name another file, or remove it")
    text, source = file.read(), name_of(file)
    parse_yaml(text, source)  # raises BadDocument for bytes that are not UTF-8: the second process cannot receive them
    request = SurveyRequest(
        text=text,
        source=source,
        settings=None if settings is None else str(settings),
        pool_size=pool_size,
        timeout_s=timeout,
    )
    survey = SiteSurvey.model_validate_json(run_driver_program(MODULE, request, "site import"))
    printing.print_json(survey) if as_json else print_survey(survey)
    if draft is not None:
        click.echo(_store_draft(draft, survey), err=as_json)
    if survey.faults:
        raise ElementError("\n".join(survey.faults))


def print_survey(survey: SiteSurvey) -> None:
    """Print the VLANs in use, the free VLAN IDs, the proposed pool, the draft's links, and the notes."""
    count = sum(switch.is_read for switch in survey.switches)
    click.echo(f"site {survey.site}: read {count} of {count_of(len(survey.switches), 'switch', 'switches')}\n")
    rows = [(vlan.vlan, format_names(vlan.names), _format_ports(vlan)) for vlan in survey.vlans]
    printing.print_table(("VLAN", "name", "ports"), rows, "no VLAN was read")
    for switch in survey.switches:
        if switch.open_trunks:
            click.echo(f"{switch.name}: every VLAN on {', '.join(switch.open_trunks)}")
    click.echo(f"\nreserved by the switches: {survey.reserved or 'none'}")
    click.echo(f"free VLAN IDs: {survey.free or 'none'}")
    click.echo(f"proposed pool: {survey.pool or 'none'}\n")
    links = [(link.a, link.b) for link in survey.draft.links]
    printing.print_table(("link", ""), links, "no links were found by LLDP")
    if survey.others:
        click.echo()
        others = [(f"{other.switch}:{other.port}", other.name, other.neighbour_port) for other in survey.others]
        printing.print_table(("port", "other neighbour", "neighbour's port"), others, "")
    if survey.notes:
        click.echo()
    for note in survey.notes:
        click.echo(f"- {note}")
    click.echo("\nnothing was changed")


def format_names(names: Mapping[Name, str]) -> str:
    """Format a VLAN's names by switch: ``lab`` if all names are equal, otherwise ``lab (sw1), test (sw2)``."""
    distinct: dict[str, Name] = {}
    for switch, name in names.items():
        distinct.setdefault(name, switch)
    if len(distinct) < 2:  # noqa: PLR2004 - one name or none
        return next(iter(distinct), "")
    return ", ".join(f"{name} ({switch})" for name, switch in distinct.items())


def _format_ports(vlan: SurveyedVlan) -> str:
    parts = []
    for switch, ports in vlan.ports.items():
        more = f" and {len(ports) - SHOWN_PORTS} more" if len(ports) > SHOWN_PORTS else ""
        parts.append(f"{switch}: {', '.join(ports[:SHOWN_PORTS])}{more}")
    return "; ".join(parts)


def _store_draft(path: Path, survey: SiteSurvey) -> str:
    if not any(switch.is_read for switch in survey.switches):
        return "no draft was written, because no switch could be read"
    write_draft(path, survey)
    return f"the draft is in {path}; check it: virtcloud topology check {path}"


def write_draft(path: Path, survey: SiteSurvey) -> None:
    """Write the draft to a new file, with the notes as comments. Raise BadInput if the file cannot be written."""
    text = "\n".join([*_format_comments(survey), format_yaml(survey.draft)])
    try:
        with path.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except OSError as error:
        raise BadInput(f"--write {path}: cannot be written: {error.strerror}") from error


def _format_comments(survey: SiteSurvey) -> Iterator[str]:
    yield f"# Draft of site {survey.site} by 'virtcloud site import'. Proposed pool: {survey.pool or 'none'}"
    yield f"# (virtcloud pool set {survey.site} {survey.pool})" if survey.pool else "#"
    yield from (f"# not read: {fault}" for fault in survey.faults)
    yield from (f"# - {note}" for note in survey.notes)
