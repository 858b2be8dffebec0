"""Options and error messages of the service's commands."""

import getpass
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import click
from pydantic import ValidationError

from sbf_service.settings import ServiceSettings, read_settings
from virtcloud.model.errors import DatabaseUnavailable, VirtcloudError
from virtcloud.model.validation_errors import explain_validation_error

DEFAULT_CONFIG = Path("/etc/virtcloud/sbf.toml")
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2

CONFIG = click.option(
    "--config", type=click.Path(path_type=Path), help=f"Settings file (TOML). Default: {DEFAULT_CONFIG}, if it exists."
)


@contextmanager
def report_bad_input(program: str = "sbf") -> Iterator[None]:
    """If the context raises VirtcloudError or ValidationError, print the error and exit with code 2.

    The name of the called command, ``program``, begins each line of the error.
    """
    try:
        yield
    except ValidationError as error:
        _exit_bad_input(program, "\n".join(explain_validation_error(fault) for fault in error.errors()))
    except DatabaseUnavailable as error:
        from sbf_service.store.connections.database import explain_error  # noqa: PLC0415 - slow to load

        _exit_bad_input(program, f"the database cannot be used: {explain_error(error.__cause__ or error)}")
    except VirtcloudError as error:
        _exit_bad_input(program, str(error))


def _exit_bad_input(program: str, message: str) -> NoReturn:
    click.echo("\n".join(f"{program}: {line}" for line in message.splitlines()), err=True)
    sys.exit(EXIT_BAD_INPUT)


def load_settings(config: Path | None) -> ServiceSettings:
    """Return the settings in ``config``, or else in the default file, or else the default settings.

    Raise the errors of :func:`.read_settings`.
    """
    file = find_settings_file(config)
    return ServiceSettings() if file is None else read_settings(file)


def find_settings_file(config: Path | None) -> Path | None:
    """Return ``config``, or else the default file if it exists."""
    return config or (DEFAULT_CONFIG if DEFAULT_CONFIG.exists() else None)


def describe_database(settings: ServiceSettings) -> str:
    """Return the address of the database without user name and password."""
    scheme, _, rest = settings.database.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def name_caller() -> str:
    """Return the name of this command's caller for the audit log. Use ``uid N`` for a user ID without an account."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # Python 3.13 raises OSError
        user = f"uid {os.getuid()}"
    return f"{user}@sbf"
