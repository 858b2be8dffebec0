"""``virtcloud login``, ``whoami``, ``token``: who you are to SBF, and tokens."""

from pathlib import Path
from typing import TextIO

import click

from virtcloud.cli import show
from virtcloud.cli.asking import as_json, client
from virtcloud.cli.durations import Duration
from virtcloud.cli.whole import Group
from virtcloud.cluster import Client
from virtcloud.credentials import default_file, write_token
from virtcloud.model.access import Identity, NewToken, Role, TokenView
from virtcloud.model.errors import BadInput

COLUMNS = ("id", "name", "role", "sites", "created", "by", "last used", "valid until")


@click.command()
@click.option("--from", "given", type=click.File(), help="Read the token from this file ('-': stdin), do not ask.")
@click.pass_context
def login(context: click.Context, given: TextIO | None) -> None:
    """Keep your token for later commands, in a file that only you can read, after SBF has said that it is valid.

    Example: virtcloud --url https://sbf.example.org login
    """
    shown = given.read() if given else click.prompt("Token", hide_input=True, err=True)
    token = shown.strip()
    if not token:
        raise BadInput("expected a token such as vc_…, got nothing")
    asking = context.find_root().obj
    with Client(asking.url, token=token, ca_file=asking.ca_file, certificate=asking.certificate) as shower:
        found = shower.sbf.whoami()
    write_token(default_file(), token)
    click.echo(f"you are {_identity(found)}; the token is kept in {default_file()}")


@click.command()
@as_json
@click.pass_context
def whoami(context: click.Context, as_json: bool) -> None:
    """Say whom SBF takes you for.

    Example: virtcloud whoami
    """
    found = client(context).sbf.whoami()
    show.json_document(found) if as_json else click.echo(_identity(found))


@click.group(cls=Group)
def token() -> None:
    """Make, list and revoke tokens. That takes an operator.

    Example: virtcloud token create alice --role user --expires 30d
    """


@token.command()
@click.argument("name")
@click.option("--role", type=click.Choice([str(one) for one in Role]), required=True, help="What it may do.")
@click.option("--site", "sites", multiple=True, metavar="SITE", help="A site administrator's site; may be repeated.")
@click.option("--expires", type=Duration(), help="How long it is valid.  [default: until it is revoked]")
@click.option("--output", type=click.Path(path_type=Path), help="Write it to this file, that only you can read.")
@as_json
@click.pass_context
def create(  # noqa: PLR0913 - click gives each option by its name
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
    """Make a token for NAME: a user, an administrator, a scheduler, or the element of an agent. It is shown this once.

    Example: virtcloud token create brno-h1 --role agent --output brno-h1.token
    """
    made = client(context).sbf.create_token(name, role, sites, expires)
    if output is not None:
        write_token(output, made.token)
    if as_json:
        show.json_document(TokenView(**made.model_dump(exclude={"token"})) if output else made)
    elif output is not None:
        click.echo(f"token {made.id} of {_holder(made)} is in {output}")
    else:
        click.echo(f"token {made.id} of {_holder(made)}; it is not shown again:", err=True)
        click.echo(made.token)


@token.command("list")
@as_json
@click.pass_context
def list_(context: click.Context, as_json: bool) -> None:
    """List all tokens, also those that are valid no longer; the tokens themselves are kept nowhere.

    Example: virtcloud token list
    """
    views = client(context).sbf.tokens()
    show.json_documents(views) if as_json else show.table(COLUMNS, [_row(one) for one in views], "no tokens")


@token.command()
@click.argument("token_id", metavar="ID")
@as_json
@click.pass_context
def revoke(context: click.Context, token_id: str, as_json: bool) -> None:
    """Let the token ID be valid no longer: at once here, within five seconds at other replicas.

    Example: virtcloud token revoke k3qh7x2a
    """
    found = client(context).sbf.revoke_token(token_id)
    show.json_document(found) if as_json else click.echo(f"token {found.id} of {_holder(found)} is revoked")


def _identity(found: Identity) -> str:
    of = f" of {', '.join(found.sites)}" if found.sites else ""
    return f"{found.name}, {found.role}{of}"


def _holder(one: TokenView | NewToken) -> str:
    return f"{one.name} ({one.role})"


def _row(one: TokenView) -> tuple[object, ...]:
    used = show.moment(one.last_used_at) if one.last_used_at else "never"
    sites = ", ".join(one.sites)
    return (one.id, one.name, one.role, sites, show.moment(one.created_at), one.created_by, used, _until(one))


def _until(one: TokenView) -> str:
    if one.revoked_at:
        return f"revoked {show.moment(one.revoked_at)}"
    return show.moment(one.expires_at) if one.expires_at else "it is revoked"
