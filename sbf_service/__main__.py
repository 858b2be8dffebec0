"""The commands of the service: ``sbf serve``, ``sbf token create``, ``sbf openapi`` and ``sbf platforms``.

`database_commands` contains the other commands. Exit codes: 0 success; 1 a plug-in cannot be used (``sbf platforms``);
2 bad input, such as invalid settings, an address in use, or a database that cannot be written.
"""

import gc
import json
import secrets
import sys
from contextlib import ExitStack, nullcontext
from pathlib import Path

import click

from sbf_service.command_options import (
    CONFIG,
    EXIT_FAILED,
    describe_database,
    find_settings_file,
    load_settings,
    name_caller,
    report_bad_input,
)
from sbf_service.database_commands import backup, prune, restore, upgrade
from sbf_service.listen_sockets import find_tcp_address
from sbf_service.local_files import ensure_database_file, private_file
from sbf_service.log import get_log, log_to_stderr
from sbf_service.settings import ServiceSettings
from sbf_service.settings_reload import EarlyReloads, copy_settings
from sbf_service.store.connections.database import make_engine, probe_write
from sbf_service.store.connections.replica_lock import hold_replica_name, hold_whole_database
from sbf_service.store.maintenance.database_migration import is_of_other_version, migrate
from sbf_service.store.store import Store
from sbf_service.store.users.tokens import create_token, find_unknown_holder
from virtcloud.model.access import Role, TokenRequest
from virtcloud.otlp_tracing import tracing

COLLECTION_THRESHOLDS = (2_000, 10, 50)
"""The thresholds of the garbage collector.

Each poll creates some 70 objects, none of them in a reference cycle. With Python's thresholds and 10,000 waiting polls,
a full collection would run every 17 s and take half a second.
"""
log = get_log("sbf_service")


@click.group()
@click.version_option(package_name="virtcloud")
def main() -> None:
    """Run the service that manages virtual clusters."""


@main.command()
@CONFIG
def serve(config: Path | None) -> None:
    """Run the service until SIGTERM.

    On SIGTERM, long polls end at once. Other calls have 5 s to finish. If a call takes longer, SBF
    answers with status 503 and Retry-After.

    Example: sbf serve --config /etc/virtcloud/sbf.toml
    """
    early_reloads = EarlyReloads()
    gc.disable()  # garbage collections would take a sixth of the time of the imports
    from sbf_service import server  # noqa: PLC0415 - the HTTP libraries are slow to load
    from sbf_service.bootstrap import build_service, replica_name  # noqa: PLC0415 - the drivers are slow to load

    gc.freeze()  # later garbage collections skip the objects that the imports created
    gc.set_threshold(*COLLECTION_THRESHOLDS)
    gc.enable()
    log_to_stderr()
    with ExitStack() as stack:
        with report_bad_input():
            settings = copy_settings(load_settings(config))
            stack.enter_context(tracing(settings.telemetry, "sbf", replica_name(settings), log.warning))
            service = build_service(settings)
            is_new = service.prepare()
            sockets = server.open_sockets(service)
            stack.enter_context(hold_replica_name(service.store.engine, replica_name(settings)))
            service.prepare()  # waits for a restore that began before this replica acquired the lock of its name
            # the steps above succeed even if the database is a standby, or if the database's disk is full
            probe_write(service.store, service.scheduler.worker.holder)
        _log_plugins()
        tcp = find_tcp_address(sockets)
        log.info("listening", tcp=tcp, socket=settings.socket or "none", database=describe_database(settings))
        if is_new:
            log.info("database_created", database=describe_database(settings), why="the database had no tables of SBF")
        server.run_server(service, sockets, find_settings_file(config), early_reloads)
    log.info("stopped")


@main.command()
def openapi() -> None:
    """Print the OpenAPI document of the API.

    Example: sbf openapi > openapi.json
    """
    from sbf_service.bootstrap import build_service  # noqa: PLC0415 - slow to load
    from sbf_service.http.app import create_app  # noqa: PLC0415 - slow to load

    click.echo(json.dumps(create_app(build_service(ServiceSettings())).openapi(), indent=2, ensure_ascii=False))


@main.command()
def platforms() -> None:
    """List the switch platforms that a topology may name, and the plug-ins that cannot be used.

    The exit code is 1 if a plug-in cannot be used. SBF runs without this plug-in.

    Example: sbf platforms
    """
    from sbf_service.drivers.registry import list_platform_names, list_plugins  # noqa: PLC0415 - slow to load

    plugins = list_plugins()
    sources = {plugin.platform: plugin.source for plugin in plugins if plugin.dialect}
    for name in list_platform_names():
        click.echo(f"{name}  ({sources[name]})" if name in sources else name)
    broken = [plugin for plugin in plugins if plugin.fault]
    for plugin in broken:
        click.echo(f"sbf: {plugin}", err=True)
    sys.exit(EXIT_FAILED if broken else 0)


def _log_plugins() -> None:
    from sbf_service.drivers.registry import list_plugins  # noqa: PLC0415 - slow to load

    for plugin in list_plugins():
        if plugin.fault:
            log.warning("platform_unusable", platform=plugin.platform, plugin=plugin.source, fault=plugin.fault)
        else:
            log.info("platform_added", platform=plugin.platform, plugin=plugin.source)


@main.group()
def token() -> None:
    """Create tokens on SBF's host, directly in the database, for example the token of the first operator.

    For all other operations on tokens, use 'virtcloud token'.
    """


@token.command()
@click.argument("name")
@click.option("--role", type=click.Choice([str(role) for role in Role]), required=True, help="Role of the token.")
@click.option("--site", "sites", multiple=True, metavar="SITE", help="Site of a site administrator; may be repeated.")
@click.option("--output", type=click.Path(path_type=Path), help="Write the token to this new file, with mode 0600.")
@CONFIG
def create(name: str, role: str, sites: tuple[str, ...], output: Path | None, config: Path | None) -> None:
    """Create a token for NAME. Print the token, or write the token to a file.

    This command also works while SBF is stopped. If the database is of an older version, SBF must be stopped, because
    the command converts the database. The token is shown only once. If the role needs the name of a host or gateway,
    and the topology has no such element, the command prints a warning. If root runs this command and the database file
    does not exist, the command creates the file, which belongs to the owner of its folder.

    Example: sbf token create eva --role operator --output eva.token
    """
    with report_bad_input():
        request = TokenRequest.model_validate({"name": name, "role": role, "sites": sites})
        settings = load_settings(config)
        if output is None:
            click.echo(_create_token(settings, request))
            return
        with private_file(output) as file:
            file.write(f"{_create_token(settings, request)}\n")
    click.echo(f"the token of {name} ({role}) is in {output}")


def _create_token(settings: ServiceSettings, request: TokenRequest) -> str:
    ensure_database_file(settings.database)
    engine = make_engine(settings.database)
    with hold_whole_database(engine) if is_of_other_version(engine) else nullcontext():
        migrate(engine)
    store = Store(engine)
    with store.change(who=name_caller()) as unit:
        text = create_token(unit, request, secrets.token_bytes).token
        warning = find_unknown_holder(unit, request)
    store.close()
    if warning is not None:
        click.echo(f"sbf: {warning}", err=True)
    return text


main.add_command(backup)
main.add_command(restore)
main.add_command(prune)
main.add_command(upgrade)

if __name__ == "__main__":
    main()
