"""The dialects of switches with a candidate configuration, one file for each platform."""

from sbf_service.drivers.switch.candidate_switch import CandidateDialect
from sbf_service.drivers.switch.candidates import arista_eapi, cisco_iosxr, juniper_junos
from sbf_service.drivers.switch.dialect import render_section

CANDIDATE_DIALECTS: dict[str, CandidateDialect] = {
    "juniper_junos": juniper_junos.CANDIDATE_DIALECT,
    "arista_eapi": arista_eapi.CANDIDATE_DIALECT,
    "cisco_iosxr": cisco_iosxr.CANDIDATE_DIALECT,
}


def render_candidate_dialects() -> str:
    """Return the lines that each dialect loads, in Markdown."""
    return "\n".join(
        render_section(
            f"## `{name}`: {dialect.title}",
            "lines of the candidate",
            {"read": dialect.show, **dialect.documented_lines},
        )
        for name, dialect in CANDIDATE_DIALECTS.items()
    )
