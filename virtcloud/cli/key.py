"""``virtcloud key``: the public SSH keys of a user."""

from typing import TextIO

import click

from virtcloud.cli import printing
from virtcloud.cli.groups import SummaryGroup
from virtcloud.cli.options import name_of, open_client
from virtcloud.model.ssh_keys import UserKey, UserKeyView, parse_user_keys

KEY_COLUMNS = ("fingerprint", "type", "comment", "added", "by")
user_option = click.option(
    "--user", metavar="USER", help="The user of the keys. Only operators may name other users.  [default: you]"
)


@click.group(cls=SummaryGroup)
def key() -> None:
    """Add, list and remove public SSH keys, with which you log in to guests.

    A new cluster gets the keys that you have at its creation. Existing guests keep their keys even if you change yours.

    Example: virtcloud key add ~/.ssh/id_ed25519.pub
    """


@key.command()
@click.argument("file", type=click.File(encoding="utf-8-sig", errors="replace"))
@user_option
@printing.json_option
@click.pass_context
def add(context: click.Context, file: TextIO, user: str | None, as_json: bool) -> None:
    """Add the public SSH keys of FILE, one key a line ('-': stdin). Idempotent.

    Only clusters that you create afterwards get the keys. A private key is refused, and not sent to SBF.

    Example: virtcloud key add ~/.ssh/id_ed25519.pub
    """
    keys = parse_user_keys(file.read(), name_of(file))
    client = open_client(context)
    user = user or client.sbf.whoami().name
    before = {view.fingerprint for view in client.sbf.keys(user)}
    views = [client.sbf.add_key(user, new) for new in keys]
    if as_json:
        printing.print_list(KEY_COLUMNS, views, _key_row, "no keys", as_json=True)
        return
    for view in views:
        click.echo(f"{view.fingerprint} is {'already' if view.fingerprint in before else 'now'} a key of {user}")


@key.command("list")
@user_option
@printing.json_option
@click.pass_context
def list_(context: click.Context, user: str | None, as_json: bool) -> None:
    """List SSH keys with their fingerprints, as 'ssh-keygen -l' shows them.

    Example: virtcloud key list
    """
    client = open_client(context)
    views = client.sbf.keys(user or client.sbf.whoami().name)
    printing.print_list(KEY_COLUMNS, views, _key_row, "no keys", as_json=as_json)


@key.command()
@click.argument("fingerprint")
@user_option
@printing.json_option
@click.pass_context
def remove(context: click.Context, fingerprint: str, user: str | None, as_json: bool) -> None:
    """Remove the key with FINGERPRINT. Guests that were created with the key accept the key until their cluster ends.

    Example: virtcloud key remove SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU
    """
    client = open_client(context)
    removed = client.sbf.remove_key(user or client.sbf.whoami().name, fingerprint)
    printing.print_json(removed) if as_json else click.echo(f"{fingerprint} is no longer a key of {removed.user}")


def _key_row(view: UserKeyView) -> tuple[object, ...]:
    shown = UserKey(view.key)
    return view.fingerprint, shown.kind, shown.comment, printing.format_time(view.added_at), view.added_by
