"""``virtcloud login``, ``whoami``, ``token``: who you are to SBF, and tokens.

``virtcloud quota``: how much a user may have.
"""

from pathlib import Path
from typing import TextIO

import click

from virtcloud.cli import printing
from virtcloud.cli.groups import SummaryGroup
from virtcloud.cli.options import DurationType, format_duration, json_option, open_client
from virtcloud.client.api import Client
from virtcloud.client.credentials import default_token_file, write_token
from virtcloud.jobs.sizes import parse_bytes
from virtcloud.model.access import Identity, NewToken, QuotaView, Role, TokenView
from virtcloud.model.errors import BadInput

TOKEN_COLUMNS = ("id", "name", "role", "sites", "created", "by", "last used", "valid until")


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
    write_token(default_token_file(), token)
    click.echo(f"you are {_identity(found)}; the token is kept in {default_token_file()}")


@click.command()
@json_option
@click.pass_context
def whoami(context: click.Context, as_json: bool) -> None:
    """Say whom SBF takes you for.

    Example: virtcloud whoami
    """
    found = open_client(context).sbf.whoami()
    printing.print_json(found) if as_json else click.echo(_identity(found))


@click.group(cls=SummaryGroup)
def token() -> None:
    """Make, list and revoke tokens. That takes an operator.

    Example: virtcloud token create alice --role user --expires 30d
    """


@token.command()
@click.argument("name")
@click.option("--role", type=click.Choice([str(one) for one in Role]), required=True, help="What it may do.")
@click.option("--site", "sites", multiple=True, metavar="SITE", help="A site administrator's site; may be repeated.")
@click.option("--expires", type=DurationType(), help="How long it is valid.  [default: until it is revoked]")
@click.option("--output", type=click.Path(path_type=Path), help="Write it to this file, that only you can read.")
@json_option
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
    made = open_client(context).sbf.create_token(name, role, sites, expires)
    if output is not None:
        write_token(output, made.token)
    if as_json:
        printing.print_json(TokenView(**made.model_dump(exclude={"token"})) if output else made)
    elif output is not None:
        click.echo(f"token {made.id} of {_holder(made)} is in {output}")
    else:
        click.echo(f"token {made.id} of {_holder(made)}; it is not shown again:", err=True)
        click.echo(made.token)


@token.command("list")
@json_option
@click.pass_context
def list_(context: click.Context, as_json: bool) -> None:
    """List all tokens, also those that are valid no longer; the tokens themselves are kept nowhere.

    Example: virtcloud token list
    """
    views = open_client(context).sbf.tokens()
    printing.print_json_list(views) if as_json else printing.print_table(
        TOKEN_COLUMNS, [_token_row(one) for one in views], "no tokens"
    )


@token.command()
@click.argument("token_id", metavar="ID")
@json_option
@click.pass_context
def revoke(context: click.Context, token_id: str, as_json: bool) -> None:
    """Let the token ID be valid no longer: at once here, within five seconds at other replicas.

    Example: virtcloud token revoke k3qh7x2a
    """
    found = open_client(context).sbf.revoke_token(token_id)
    printing.print_json(found) if as_json else click.echo(f"token {found.id} of {_holder(found)} is revoked")


def _identity(found: Identity) -> str:
    of = f" of {', '.join(found.sites)}" if found.sites else ""
    return f"{found.name}, {found.role}{of}"


def _holder(one: TokenView | NewToken) -> str:
    return f"{one.name} ({one.role})"


def _token_row(one: TokenView) -> tuple[object, ...]:
    used = printing.format_time(one.last_used_at) if one.last_used_at else "never"
    sites = ", ".join(one.sites)
    return (one.id, one.name, one.role, sites, printing.format_time(one.created_at), one.created_by, used, _until(one))


def _until(one: TokenView) -> str:
    if one.revoked_at:
        return f"revoked {printing.format_time(one.revoked_at)}"
    return printing.format_time(one.expires_at) if one.expires_at else "it is revoked"


QUOTA_COLUMNS = ("user", "clusters", "networks", "guests", "CPUs", "memory", "sites at most", "a cluster lasts at most")
"""Of what a user has now, and may have, ``2 of 4``."""
MIB = 1 << 20


class MemoryType(click.ParamType):  # type: ignore[type-arg]  # older ones are not generic
    """Memory as batch systems write it (``64gb``), in MiB."""

    name = "memory"

    def convert(self, value: object, parameter: click.Parameter | None, context: click.Context | None) -> int:
        """Return MiB, rounded down; a number alone is bytes."""
        try:
            return parse_bytes(str(value)) // MIB
        except ValueError:
            self.fail(f"expected a size such as 64gb or 512mb, got {value!r}", parameter, context)


@click.group(cls=SummaryGroup)
def quota() -> None:
    """How much a user may have: clusters, networks, guests, CPUs and memory at once; sites and length of each cluster.

    Example: virtcloud quota set alice --clusters 5
    """


@quota.command("show")
@click.argument("user", required=False)
@json_option
@click.pass_context
def show_(context: click.Context, user: str | None, as_json: bool) -> None:
    """Show the quota of USER, or of every user who has one of its own.

    Example: virtcloud quota show alice
    """
    sbf = open_client(context).sbf
    if user is not None:
        _print_quota(sbf.quota(user), as_json=as_json)
        return
    views = sbf.quotas()
    nothing = "no user has a quota of its own"
    printing.print_json_list(views) if as_json else printing.print_table(
        QUOTA_COLUMNS, [_quota_row(one) for one in views], nothing
    )


@quota.command("set")
@click.argument("user")
@click.option("--clusters", type=click.IntRange(0, 1_000_000), help="Clusters at once.")
@click.option("--sites", type=click.IntRange(1, 1_000_000), help="Sites in one cluster.")
@click.option("--networks", type=click.IntRange(0), help="Networks at once.")
@click.option("--guests", type=click.IntRange(0), help="Guests at once.")
@click.option("--cpus", type=click.IntRange(0), help="CPUs of all guests.")
@click.option("--memory", type=MemoryType(), help="Memory of all guests, such as 64gb.")
@click.option("--lease", type=DurationType(), help="How long a cluster may last, with all its extensions.")
@json_option
@click.pass_context
def set_(  # noqa: PLR0913 - click gives each option by its name
    context: click.Context,
    /,
    user: str,
    *,
    clusters: int | None,
    sites: int | None,
    networks: int | None,
    guests: int | None,
    cpus: int | None,
    memory: int | None,
    lease: float | None,
    as_json: bool,
) -> None:
    """Set the quota of USER. What is not given is as the service's settings say; what USER has already stays.

    Example: virtcloud quota set alice --clusters 5 --lease 7d
    """
    made = open_client(context).sbf.put_quota(
        user, clusters, sites, lease, networks=networks, guests=guests, cpus=cpus, memory_mb=memory
    )
    _print_quota(made, as_json=as_json)


def _print_quota(view: QuotaView, *, as_json: bool) -> None:
    printing.print_json(view) if as_json else printing.print_table(QUOTA_COLUMNS, [_quota_row(view)], "")


def _quota_row(view: QuotaView) -> tuple[object, ...]:
    limits = view.limits
    lease = "no limit" if limits.lease_s is None else format_duration(limits.lease_s)
    return (
        view.user,
        _format_usage(view.clusters, limits.clusters),
        _format_usage(view.networks, limits.networks),
        _format_usage(view.guests, limits.guests),
        _format_usage(view.cpus, limits.cpus),
        f"{_format_usage(view.memory_mb, limits.memory_mb)} MiB",
        "no limit" if limits.sites is None else limits.sites,
        lease,
    )


def _format_usage(number: int, most: int | None) -> str:
    return str(number) if most is None else f"{number} of {most}"
