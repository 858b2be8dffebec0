"""``virtcloud login``, ``whoami`` and ``token``: the identity of the caller, and tokens."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import click

from virtcloud.cli import printing
from virtcloud.cli.groups import SummaryGroup
from virtcloud.cli.options import DurationType, open_client
from virtcloud.client.api import Client
from virtcloud.client.credentials import (
    PREFIX,
    check_token,
    default_token_file,
    no_token,
    token_source,
    write_token,
)
from virtcloud.client.sbf import SbfClient
from virtcloud.model.access import ELEMENT_ROLES, Identity, NewToken, Role, TokenView, describe_unknown_holder
from virtcloud.model.durations import MAX_TOKEN_S
from virtcloud.model.edge import DEVICE_KINDS
from virtcloud.model.errors import BadInput, NotFound, VirtcloudError

TOKEN_COLUMNS = ("id", "name", "role", "sites", "created", "by", "last used", "valid until")


@click.command()
@click.option(
    "--from",
    "token_input",
    type=click.File(encoding="utf-8-sig", errors="replace"),
    help="Read the token from this file ('-': stdin), instead of prompting at the terminal.",
)
@click.pass_context
def login(context: click.Context, token_input: TextIO | None) -> None:
    """Check your token with SBF, and store the token for later commands. Only you can read the token's file.

    Example: virtcloud --url https://sbf.example.org:8800 login
    """
    token = (token_input.read() if token_input else _prompt_for_token()).strip()
    if not token:
        raise BadInput("expected a token such as vc_…, got an empty line")
    check_token(token if token.startswith(PREFIX) else "", "token")
    connection = context.find_root().obj
    with Client(connection.url, token=token, ca_file=connection.ca_file, certificate=connection.certificate) as client:
        identity, url = client.sbf.whoami(), client.sbf.url
    write_token(default_token_file(), token)
    click.echo(f"you are {_format_identity(identity)}; the token is stored in {default_token_file()}")
    if token_source(url) is no_token:
        click.echo(
            f"virtcloud: commands at {url} do not send the stored token, because SBF identifies you by your "
            f"user ID there. To send the token: --token-file {default_token_file()}",
            err=True,
        )


def _prompt_for_token() -> str:
    """Return the token that the user enters at the terminal. Without a terminal, return the first line of the input.

    Raise BadInput at the end of the input, and click.Abort on Ctrl-C.
    """
    end = BadInput(
        "token: expected a token as input, got the end of the input: pass the token's file (virtcloud login "
        "--from FILE)"
    )
    if not sys.stdin.isatty():
        if line := sys.stdin.buffer.readline():
            return line.decode(errors="replace")
        raise end
    try:
        entered: str = click.prompt("Token", hide_input=True, err=True)
    except click.Abort as error:
        if not isinstance(error.__context__, EOFError):
            raise
        raise end from error
    return entered


@click.command()
@printing.json_option
@click.pass_context
def whoami(context: click.Context, as_json: bool) -> None:
    """Show the user and the role that SBF sees for your token.

    Example: virtcloud whoami
    """
    identity = open_client(context).sbf.whoami()
    printing.print_json(identity) if as_json else click.echo(_format_identity(identity))


@click.group(cls=SummaryGroup)
def token() -> None:
    """Create, list and revoke tokens, as an operator.

    Example: virtcloud token create alice --role user --expires 30d
    """


@token.command()
@click.argument("name")
@click.option(
    "--role", type=click.Choice([str(role) for role in Role]), required=True, help="The role of the token's holder."
)
@click.option("--site", "sites", multiple=True, metavar="SITE", help="A site administrator's site; may be repeated.")
@click.option(
    "--expires",
    type=DurationType(MAX_TOKEN_S),
    help="Duration of the token's validity.  [default: until it is revoked]",
)
@click.option(
    "--output", type=click.Path(path_type=Path), help="Write the token to this new file, which only you can read."
)
@printing.json_option
@click.pass_context
def create(  # noqa: PLR0913 - click passes each option by its name
    context: click.Context,
    /,
    name: str,
    *,
    role: str,
    sites: tuple[str, ...],
    expires: float | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Create a token for NAME, which is a user, administrator, scheduler or element. The token is shown once.

    If the role needs the name of a host or gateway, and the topology has no such element, the command prints a warning.

    Example: virtcloud token create brno-h1 --role agent --output brno-h1.token
    """
    if output is not None and output.exists():
        raise BadInput(
            f"--output {output}: expected a new file, but the file exists; a token in this file remains valid until "
            "the token is revoked: name another file, or revoke that token (virtcloud token revoke) and remove the "
            "file"
        )
    sbf = open_client(context).sbf
    new_token = sbf.create_token(name, role, sites, expires)
    if output is not None:
        _write_new_token(output, new_token)
    if as_json:
        printing.print_json(TokenView(**new_token.model_dump(exclude={"token"})) if output else new_token)
    elif output is not None:
        click.echo(f"token {new_token.id} of {_format_holder(new_token)} is in {output}")
    else:
        click.echo(f"token {new_token.id} of {_format_holder(new_token)}; the token is not shown again:", err=True)
        click.echo(new_token.token)
    if warning := _find_unknown_holder(sbf, new_token):
        click.echo(f"virtcloud: {warning}", err=True)


def _find_unknown_holder(sbf: SbfClient, new_token: NewToken) -> str | None:
    """Return a warning if the role of a new token needs the name of a host or gateway, and no element has this name.

    If the elements cannot be read, the warning is about this error: the token was created.
    """
    if new_token.role not in ELEMENT_ROLES:
        return None
    try:
        with suppress(NotFound):
            if sbf.element(new_token.name).kind not in DEVICE_KINDS:
                return None
        known = {element.name for element in sbf.elements() if element.kind not in DEVICE_KINDS}
    except VirtcloudError as error:
        return f"the elements could not be read, so element {new_token.name} may be unknown: {error}"
    return describe_unknown_holder(new_token.name, new_token.role, known)


def _write_new_token(output: Path, new_token: NewToken) -> None:
    try:
        write_token(output, new_token.token)
    except BadInput as error:
        raise BadInput(f"{error}; token {new_token.id} is lost: virtcloud token revoke {new_token.id}") from error


@token.command("list")
@click.option("--name", help="Only tokens of this holder.")
@click.option(
    "--role", type=click.Choice([str(role) for role in Role]), metavar="ROLE", help="Only tokens with this role."
)
@printing.limit_option
@printing.json_option
@click.pass_context
def list_(context: click.Context, /, *, name: str | None, role: str | None, limit: int | None, as_json: bool) -> None:
    """List tokens, oldest first, including expired and revoked tokens. SBF does not store the secret part of a token.

    Example: virtcloud token list --role agent
    """
    pages = open_client(context).sbf.token_pages(name=name, role=role)
    printing.print_pages(TOKEN_COLUMNS, pages, _token_row, "no tokens", as_json=as_json, limit=limit)


@token.command()
@click.argument("token_id", metavar="ID")
@printing.json_option
@click.pass_context
def revoke(context: click.Context, token_id: str, as_json: bool) -> None:
    """Revoke the token with this ID. Replicas of SBF refuse the token within 15 seconds, usually at once. Idempotent.

    Example: virtcloud token revoke k3qh7x2a
    """
    if token_id.startswith(PREFIX):
        raise BadInput("expected the ID of a token, got a complete token: its ID is the part between the first two '_'")
    revoked = open_client(context).sbf.revoke_token(token_id)
    printing.print_json(revoked) if as_json else click.echo(
        f"token {revoked.id} of {_format_holder(revoked)} is revoked"
    )


def _format_identity(identity: Identity) -> str:
    sites = f" of {', '.join(identity.sites)}" if identity.sites else ""
    return f"{identity.name}, {identity.role}{sites}"


def _format_holder(token: TokenView | NewToken) -> str:
    return f"{token.name} ({token.role})"


def _token_row(token: TokenView) -> tuple[object, ...]:
    used = printing.format_time(token.last_used_at) if token.last_used_at else "never"
    sites = ", ".join(token.sites)
    return (
        token.id,
        token.name,
        token.role,
        sites,
        printing.format_time(token.created_at),
        token.created_by,
        used,
        _format_validity(token),
    )


def _format_validity(token: TokenView) -> str:
    if token.revoked_at:
        return f"revoked {printing.format_time(token.revoked_at)}"
    return printing.format_time(token.expires_at) if token.expires_at else "revocation"
