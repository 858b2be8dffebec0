"""``sbf serve`` runs the service, ``sbf openapi`` prints the description of its API.

Exit codes: 0 well, 2 what was given cannot be right (settings, an address in use, a database that cannot be written).
"""

import json
import sys
from pathlib import Path

import click

from sbf_service import serve as serving
from sbf_service.http.app import create_app
from sbf_service.log import get_log, log_to_stderr
from sbf_service.service import make_service
from sbf_service.settings import Settings, read_settings
from virtcloud.model.errors import VirtcloudError

DEFAULT_CONFIG = Path("/etc/virtcloud/sbf.toml")
EXIT_BAD_INPUT = 2

log = get_log("sbf_service")


@click.group()
@click.version_option(package_name="virtcloud")
def main() -> None:
    """Run the service that owns virtual clusters."""


@main.command()
@click.option("--config", type=click.Path(path_type=Path), help=f"Settings (TOML); {DEFAULT_CONFIG} when it is there.")
def serve(config: Path | None) -> None:
    """Serve until SIGTERM.

    Example: sbf serve --config /etc/virtcloud/sbf.toml
    """
    log_to_stderr()
    try:
        settings = _settings(config)
        service = make_service(settings)
        service.prepare()
        sockets = serving.listen(service)
    except VirtcloudError as error:
        click.echo(f"sbf: {error}", err=True)
        sys.exit(EXIT_BAD_INPUT)
    log.info("listening", tcp=settings.listen, socket=settings.socket or "none", database=_database(settings))
    serving.serve(service, sockets)
    log.info("stopped")


@main.command()
def openapi() -> None:
    """Print the OpenAPI document of the API.

    Example: sbf openapi > openapi.json
    """
    click.echo(json.dumps(create_app(make_service(Settings())).openapi(), indent=2, ensure_ascii=False))


def _settings(config: Path | None) -> Settings:
    if config is not None:
        return read_settings(config)
    return read_settings(DEFAULT_CONFIG) if DEFAULT_CONFIG.exists() else Settings()


def _database(settings: Settings) -> str:
    """Show which database is used, without its password."""
    scheme, _, rest = settings.database.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


if __name__ == "__main__":
    main()
