"""A secret that nobody sees by accident.

Where a secret is: in a file, in the environment, or what a command prints. It is fetched when it is needed.
"""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from virtcloud.model.document import Document
from virtcloud.model.errors import BadInput, Refused


@dataclass(frozen=True, slots=True)
class Secret:
    """A password or a key. Its ``str`` and ``repr`` are ``***``; :meth:`reveal` gives it, at the point of use only."""

    _value: str

    def reveal(self) -> str:
        """Give the secret itself."""
        return self._value

    def __repr__(self) -> str:
        """Hide it."""
        return "***"

    __str__ = __repr__


ENCODING = "utf-8"


class SecretSource(Document):
    """One of three places; the secret is what stands there, without the line's end."""

    file: Path | None = Field(None, description="File with the secret.")
    env: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="Or: the service's environment variable with it."
    )
    command: Annotated[tuple[str, ...], Field(min_length=1)] | None = Field(
        None,
        description='Or: a command that prints it, such as `["pass", "show", "switches"]`; it is run whenever a '
        "session is opened, as the service's user.",
    )

    @model_validator(mode="before")
    @classmethod
    def _is_no_secret(cls, given: object) -> object:
        """Refuse a secret itself, without repeating it."""
        if not isinstance(given, dict | SecretSource):
            raise BadInput("expected where the secret is, {file = …}, {env = …} or {command = […]}, got something else")
        return given

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        given = self.model_dump(exclude_none=True)
        if len(given) != 1:
            raise BadInput(f"expected one of file, env and command, got {', '.join(given) or 'none'}")
        return self


def fetch_secret(source: SecretSource, timeout_s: float) -> Secret:
    """Fetch a secret. Raises Refused that names the place, and never what was found there."""
    if source.file is not None:
        found = _read_file(source.file)
    elif source.env is not None:
        found = _read_environment(source.env)
    else:
        found = _run_command(source.command or (), timeout_s)
    return Secret(found)


def _read_file(path: Path) -> str:
    try:
        return _check_not_empty(path.read_text(encoding=ENCODING), f"file {path}")
    except OSError as error:
        raise Refused(f"file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise Refused(f"file {path} holds no text ({ENCODING})") from None  # the cause would show what it holds


def _read_environment(name: str) -> str:
    return _check_not_empty(os.environ.get(name, ""), f"the service's environment variable {name}")


def _run_command(argv: tuple[str, ...], timeout_s: float) -> str:
    """Run a command; its output is the secret, and its words on standard error might be: neither is ever shown."""
    named = f"command {argv[0]}"
    try:
        done = subprocess.run(  # noqa: S603 - the service's own settings name it
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=timeout_s,
            check=False,
        )
        text = done.stdout.decode(ENCODING)
    except subprocess.TimeoutExpired:
        raise Refused(f"{named} took longer than {timeout_s:g} s (timing.secret_timeout)") from None
    except OSError as error:
        raise Refused(f"{named} cannot be run: {error.strerror}") from error
    except UnicodeDecodeError:
        raise Refused(f"{named} printed no text ({ENCODING})") from None
    if done.returncode:
        raise Refused(f"{named} ended with {done.returncode}; run it by hand as the service's user to see why")
    return _check_not_empty(text, named)


def _check_not_empty(text: str, where: str) -> str:
    secret = text.rstrip("\r\n")
    if not secret:
        raise Refused(f"{where}: expected a secret, got nothing")
    return secret
