"""Platforms with a candidate configuration: one small file for each, and the table of what they are told."""

from sbf_service.drivers.switch.candidate_switch import CandidateDialect
from sbf_service.drivers.switch.candidates import arista_eapi, cisco_iosxr, juniper_junos

CANDIDATE_DIALECTS: dict[str, CandidateDialect] = {
    "juniper_junos": juniper_junos.CANDIDATE_DIALECT,
    "arista_eapi": arista_eapi.CANDIDATE_DIALECT,
    "cisco_iosxr": cisco_iosxr.CANDIDATE_DIALECT,
}


def render_candidate_dialects() -> str:
    """Write what each platform is told, in Markdown."""
    return "\n".join(_section(name, words) for name, words in CANDIDATE_DIALECTS.items())


def _section(name: str, words: CandidateDialect) -> str:
    rows = {"read": words.show, **words.told}
    told = "".join(
        f"| {what} | {' / '.join(f'`{line}`' for line in lines)} |\n" for what, lines in rows.items() if lines
    )
    return f"## `{name}`: {words.title}\n\n| to | its candidate configuration is told |\n|---|---|\n{told}"
