"""Platforms with a candidate configuration: one small file for each, and the table of what they are told."""

from sbf_service.drivers.candidate import CandidateWords
from sbf_service.drivers.candidates import arista, cisco_iosxr, junos

WORDS: dict[str, CandidateWords] = {
    "juniper_junos": junos.WORDS,
    "arista_eapi": arista.WORDS,
    "cisco_iosxr": cisco_iosxr.WORDS,
}


def table() -> str:
    """Write what each platform is told, in Markdown."""
    return "\n".join(_section(name, words) for name, words in WORDS.items())


def _section(name: str, words: CandidateWords) -> str:
    rows = {"read": words.show, **words.told}
    told = "".join(
        f"| {what} | {' / '.join(f'`{line}`' for line in lines)} |\n" for what, lines in rows.items() if lines
    )
    return f"## `{name}`: {words.title}\n\n| to | its candidate configuration is told |\n|---|---|\n{told}"
