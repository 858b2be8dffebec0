"""``virtcloud pbs``: install, remove and check the hooks of an OpenPBS server."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from pbs_hooks.openpbs import install as installation
from pbs_hooks.openpbs import qmgr
from pbs_hooks.openpbs.hook_status import check_installation
from pbs_hooks.openpbs.install import BUNDLED_SOURCES, HOOK_NAMES, RequestedSettings
from pbs_hooks.openpbs.qmgr import Qmgr, list_jobs_with_cluster
from pbs_hooks.openpbs.server_state import InstallationChange
from virtcloud.agent.settings import read_settings
from virtcloud.cli import printing
from virtcloud.cli.groups import EXIT_FAILED, SummaryGroup
from virtcloud.cli.host import AGENT_SETTINGS_FILE
from virtcloud.model.errors import BadInput
from virtcloud.scheduler.scheduler_settings import SchedulerSettings

FILES = ("token_file", "ca_file", "images")
dry_run_option = click.option("--dry-run", is_flag=True, help="Show the changes without making them.")


@click.group(cls=SummaryGroup)
def pbs() -> None:
    """Install, remove and check virtcloud's hooks in OpenPBS, as root on the host of the PBS server.

    Example: virtcloud pbs status
    """


@pbs.command()
@click.option("--sbf", metavar="URL", help="Address of SBF for the PBS server.")
@click.option("--token-file", type=click.Path(path_type=Path), help="File with a scheduler's token for the hooks.")
@click.option(
    "--ca-file", type=click.Path(path_type=Path), help="File with the CA certificates that verify SBF's certificate."
)
@click.option(
    "--settings", type=click.Path(path_type=Path), help='File with more settings: JSON, {"server": {…}, "mom": {…}}.'
)
@dry_run_option
@printing.json_option
def install(  # noqa: PLR0913 - click passes each option by its name
    *,
    sbf: str | None,
    token_file: Path | None,
    ca_file: Path | None,
    settings: Path | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Create or update the resources and hooks. Objects that are up to date are not changed.

    Settings that are not given remain unchanged on the server. Idempotent: after an interruption, repeat the command.

    Example: virtcloud pbs install --sbf https://sbf.example.org:8800 --token-file /etc/virtcloud/pbs.token --dry-run
    """
    options = {"sbf": sbf, "token_file": token_file and str(token_file), "ca_file": ca_file and str(ca_file)}
    file_settings = _read_settings_file(settings) if settings is not None else {}
    server = {**file_settings.get("server", {}), **{key: value for key, value in options.items() if value is not None}}
    openpbs = qmgr.find_installation()
    changes = installation.plan_installation(
        Qmgr(openpbs), openpbs, BUNDLED_SOURCES, RequestedSettings({**file_settings, "server": server})
    )
    _check_files(server)
    for change in _announce(changes, dry_run=dry_run, as_json=as_json):
        qmgr.apply_change(Qmgr(openpbs), change)
    if as_json:
        _print_json(changes, dry_run=dry_run)
    elif not changes:
        click.echo("nothing to do: the hooks are installed and up to date")


@pbs.command()
@click.option("--force", is_flag=True, help="Delete the hooks even while jobs with a cluster run.")
@dry_run_option
@printing.json_option
def uninstall(force: bool, dry_run: bool, as_json: bool) -> None:
    """Delete the hooks, and the resources that no job uses.

    Example: virtcloud pbs uninstall --dry-run
    """
    openpbs = qmgr.find_installation()
    changes = installation.plan_removal(Qmgr(openpbs), lambda: list_jobs_with_cluster(openpbs), force=force)
    remaining = installation.apply_removal(Qmgr(openpbs), _announce(changes, dry_run=dry_run, as_json=as_json))
    for reason in remaining:
        click.echo(f"not deleted: {reason}", err=True)
    if as_json:
        _print_json(changes, dry_run=dry_run)
    elif not changes:
        click.echo("nothing to do: found no hooks or resources of virtcloud")


@pbs.command()
@click.option(
    "--agent-config",
    type=click.Path(path_type=Path),
    default=AGENT_SETTINGS_FILE,
    show_default=True,
    help="Settings of the agent that reconciles jobs on this host.",
)
@printing.json_option
def status(agent_config: Path, as_json: bool) -> None:
    """Check the hooks, and whether SBF and the hosts' agents respond. The exit code is 1 if a check fails.

    Example: virtcloud pbs status
    """
    openpbs = qmgr.find_installation()
    checks = list(
        check_installation(Qmgr(openpbs), openpbs, BUNDLED_SOURCES, _find_status_file(agent_config), datetime.now(UTC))
    )
    if as_json:
        click.echo(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        rows = [("ok" if check.good else "WRONG", check.subject, check.seen) for check in checks]
        printing.print_table(("", "subject", "found"), rows, "no checks")
    if not all(check.good for check in checks):
        click.get_current_context().exit(EXIT_FAILED)


def _check_files(server: Mapping[str, Any]) -> None:
    for key in (name for name in FILES if server.get(name) and not os.path.exists(server[name])):  # noqa: PTH110 - Path.exists raises an exception
        raise BadInput(
            f"server: the hook's setting {key}: expected a path on this host, got {server[key]}, which does not exist"
        )


def _find_status_file(agent_config: Path) -> Path:
    settings = read_settings(agent_config).scheduler if agent_config.exists() else None
    return (settings or SchedulerSettings()).status


def _announce(changes: Sequence[InstallationChange], *, dry_run: bool, as_json: bool) -> Sequence[InstallationChange]:
    """Print the changes, unless ``as_json`` is true. Return the changes to apply; in a dry run, return no changes."""
    if changes and dry_run and not as_json:
        click.echo("dry run; these changes would be made:")
    for change in () if as_json else changes:
        click.echo(change.description)
    return () if dry_run else changes


def _print_json(changes: Sequence[InstallationChange], *, dry_run: bool) -> None:
    click.echo(json.dumps({"done": not dry_run, "changes": [change.description for change in changes]}, indent=2))


def _read_settings_file(path: Path) -> Mapping[str, Mapping[str, Any]]:
    try:
        settings = json.loads(path.read_bytes())
    except OSError as error:
        raise BadInput(f"settings {path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BadInput(f"settings {path}: expected a readable JSON file, got: {error}") from error
    if (
        not isinstance(settings, dict)
        or not set(settings) <= set(HOOK_NAMES)
        or not all(isinstance(section, dict) for section in settings.values())
    ):
        raise BadInput(
            f'settings {path}: expected an object such as {{"server": {{}}, "mom": {{}}}}, got: {settings!r:.80}'
        )
    return settings
