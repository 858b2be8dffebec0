"""Man pages and completion scripts of ``virtcloud`` and ``sbf``, from the commands' help.

Each command of ``virtcloud`` has a page with its subcommands, such as ``virtcloud-cluster.1``.
Pages have no date, so that two builds are equal.
"""

import inspect
from collections.abc import Iterator

import click
from completion_scripts import completion_scripts

from sbf_command import main as sbf
from virtcloud import __version__
from virtcloud.cli import main as virtcloud

ROFF = str.maketrans({"\\": r"\e", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti", '"': r"\(dq"})
LITERAL = "\b\n"
"""The beginning of a paragraph that click does not wrap."""


def command_files() -> dict[str, str]:
    """Return all man pages and completion scripts, by their path below ``/usr/share``."""
    pages = {f"man/man1/{name}.1": text for name, text in (*_virtcloud_pages(), _sbf_page())}
    return pages | completion_scripts("virtcloud") | completion_scripts("sbf")


def _virtcloud_pages() -> Iterator[tuple[str, str]]:
    top = click.Context(virtcloud, info_name="virtcloud", **virtcloud.context_settings)
    children = list(_children(top))
    rows = "".join(f".TP\n.BR virtcloud\\-{_roff(child.info_name)} (1)\n{_summary(child)}\n" for child in children)
    yield "virtcloud", _head(top) + _body(top) + f".SH COMMANDS\n{rows}"
    for child in children:
        yield f"virtcloud-{child.info_name}", _head(child) + _body(child) + _commands(child) + _see_also("virtcloud")


def _sbf_page() -> tuple[str, str]:
    top = click.Context(sbf, info_name="sbf", **sbf.context_settings)
    return "sbf", _head(top) + _body(top) + _commands(top) + _see_also("virtcloud")


def _children(parent: click.Context) -> Iterator[click.Context]:
    if not isinstance(parent.command, click.Group):
        return
    for name in parent.command.list_commands(parent):
        command = parent.command.get_command(parent, name)
        if command is not None and not command.hidden:
            yield click.Context(command, parent, name, **command.context_settings)


def _descendants(parent: click.Context) -> Iterator[click.Context]:
    for child in _children(parent):
        yield child
        yield from _descendants(child)


def _head(context: click.Context) -> str:
    name = context.command_path.replace(" ", "-")
    title = f'.TH {_roff(name.upper())} 1 "" "virtcloud {__version__}" "virtcloud"\n'
    return f"{title}.ad l\n.nh\n.SH NAME\n{_roff(name)} \\- {_summary(context).rstrip('.')}\n"


def _body(context: click.Context) -> str:
    synopsis = f".SH SYNOPSIS\n{_usage(context)}\n.SH DESCRIPTION\n{_paragraphs(context)}"
    return synopsis + (f".SH OPTIONS\n{options}" if (options := _options(context)) else "")


def _commands(context: click.Context) -> str:
    sections = "".join(
        f".SS {_roff(child.command_path)}\n{_usage(child)}\n.PP\n{_paragraphs(child)}{_options(child)}"
        for child in _descendants(context)
    )
    return f".SH COMMANDS\n{sections}" if sections else ""


def _see_also(page: str) -> str:
    return f".SH SEE ALSO\n.BR {page} (1)\n"


def _summary(context: click.Context) -> str:
    return _roff(" ".join(context.command.get_short_help_str(1000).split()))


def _usage(context: click.Context) -> str:
    pieces = " ".join(context.command.collect_usage_pieces(context))
    return f"\\fB{_roff(context.command_path)}\\fR {_roff(pieces)}"


def _paragraphs(context: click.Context) -> str:
    text = inspect.cleandoc(context.command.help or "").partition("\f")[0].strip()
    return ".PP\n".join(_paragraph(part) for part in text.split("\n\n"))


def _paragraph(text: str) -> str:
    if text.startswith(LITERAL):
        return f".nf\n{_roff(text.removeprefix(LITERAL))}\n.fi\n"
    return f"{_roff(text)}\n"


def _options(context: click.Context) -> str:
    options = (option for option in context.command.get_params(context) if isinstance(option, click.Option))
    records = (option.get_help_record(context) for option in options)
    return "".join(f".TP\n.B {_roff(names)}\n{_roff(text) or '.br'}\n" for names, text in filter(None, records))


def _roff(text: str | None) -> str:
    """Escape text for roff. Without the escape, roff would treat each line that begins with a dot as a command."""
    lines = (text or "").translate(ROFF).splitlines()
    return "\n".join(f"\\&{line}" if line.startswith(".") else line for line in lines)
