"""The settings of accounts on devices, and of the sources of their secrets."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from virtcloud.model.document import Document
from virtcloud.model.errors import BadInput


class SecretSource(Document):
    """The source of a secret: a file, an environment variable, or a command's output. Final newlines are ignored."""

    file: Path | None = Field(None, description="File with the secret.")
    env: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="Alternative: the secret is in this environment variable of the service."
    )
    command: Annotated[tuple[str, ...], Field(min_length=1)] | None = Field(
        None,
        description='Alternative: command that prints the secret, such as `["pass", "show", "switches"]`. '
        "SBF runs the command before each login, as the user of the service.",
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_plain_secret(cls, value: object) -> object:
        if not isinstance(value, dict | SecretSource):
            raise BadInput("expected the source of a secret, {file = …}, {env = …} or {command = […]}, got a value")
        return value

    @model_validator(mode="after")
    def _check_single_source(self) -> Self:
        sources = self.model_dump(exclude_none=True)
        if len(sources) != 1:
            raise BadInput(f"expected exactly one of file, env and command, got {', '.join(sources) or 'none'}")
        return self


class Credential(Document):
    """An account on devices, with the sources of its secrets: ``{file = …}``, ``{env = …}``, ``{command = […]}``.

    ``enable`` is the password of the privileged mode, if it differs from the account's password.
    """

    username: str = Field(description="The account on the device.")
    key_file: Path | None = Field(None, description="File with the account's SSH key.")
    password: SecretSource | None = None
    enable: SecretSource | None = None
    known_hosts: Path | None = Field(
        None,
        description="File with the devices' SSH host keys, in OpenSSH's format. SBF does not log in to a device "
        "whose key is missing or different. Without this file SBF accepts any key: name a file unless you "
        "control the whole network between SBF and the devices.",
    )
    ca_file: Path | None = Field(
        None,
        description="File with certificates (PEM) of devices that SBF reaches over HTTPS, or of their authorities. SBF "
        "does not check the name in a certificate. Without this file SBF accepts any certificate.",
    )
