"""The service's settings: a TOML file, checked whole before anything is started."""

import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from virtcloud.model.document import Document
from virtcloud.model.documents import explain, faults
from virtcloud.model.errors import BadDocument, BadInput
from virtcloud.model.values import Name, Text

Seconds = Annotated[float, Field(gt=0, le=86400)]

DEFAULT_DATABASE = "sqlite:////var/lib/virtcloud/sbf.db"
DEFAULT_LISTEN = "127.0.0.1:8800"


class ListenAddress(Text):
    """Where to listen, written ``host:port``; an IPv6 address stands in brackets."""

    __slots__ = ()
    pattern = r".+:[0-9]{1,5}"
    meaning = "an address and a port such as 127.0.0.1:8800"


class Credential(Document):
    """Who to be on a device. Secrets stay in files of their own: here are only their names.

    ``enable_file`` is the password for the privileged mode of command lines, where it is not the login's.
    """

    username: str
    key_file: Path | None = None
    password_file: Path | None = None
    enable_file: Path | None = None


class Timing(Document):
    """How long to wait, in seconds.

    ``drain_deadline``: after this an element that does not confirm a removal keeps the numbers in quarantine.
    ``agent_silence``: after this an agent that has not asked is taken for unreachable.
    """

    connect_timeout: Seconds = 5
    read_timeout: Seconds = 10
    retry_first: Seconds = 0.5
    retry_most: Seconds = 30
    drain_deadline: Seconds = 60
    drift_interval: Seconds = 300
    agent_silence: Seconds = 150

    @property
    def drain(self) -> timedelta:
        """The drain deadline."""
        return timedelta(seconds=self.drain_deadline)

    @property
    def lease(self) -> timedelta:
        """How long a worker holds an element: longer than the longest talk with a device, two reads and a change."""
        return timedelta(seconds=3 * self.connect_timeout + 6 * self.read_timeout + 5)


class Settings(Document):
    """Everything that can be set. ``replica`` tells several services on one database apart."""

    database: str = DEFAULT_DATABASE
    listen: ListenAddress = ListenAddress(DEFAULT_LISTEN)
    socket: Path | None = None
    replica: Name | None = None
    workers: Annotated[int, Field(ge=1, le=1000)] = 32
    credentials: dict[Name, Credential] = Field(default_factory=dict)
    timing: Timing = Timing()


def read_settings(path: Path) -> Settings:
    """Read settings. Raises BadDocument that names the file and every key at fault, BadInput for no such file."""
    try:
        return Settings.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadDocument(f"{path}: not TOML: {error}") from error
    except ValidationError as error:
        lines = (f"{path}: {'.'.join(map(str, one['loc']))}: {explain(one)}" for one in faults(error))
        raise BadDocument("\n".join(lines)) from error
