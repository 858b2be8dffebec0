"""The agent's settings: a TOML file, mostly ``/etc/virtcloud/agent.toml``."""

import tomllib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from virtcloud.model.document import Document
from virtcloud.model.documents import explain, faults
from virtcloud.model.errors import BadDocument
from virtcloud.model.topology import Hypervisor
from virtcloud.model.values import Name

Seconds = Annotated[float, Field(gt=0, le=3600)]


class GuestKeys(Document):
    """``[guests]``: how guests run here.

    ``accelerator``: ``auto`` takes KVM when libvirt lists it; ``tcg`` emulates the processor, for machines on which
    ``/dev/kvm`` is there and does not work. ``confined = false`` runs them without libvirt's security driver.
    ``stop_grace``: seconds that a guest has to end by itself.
    """

    accelerator: Literal["auto", "kvm", "tcg"] = "auto"
    confined: bool = True
    stop_grace: Annotated[float, Field(ge=0, le=3600)] = 5


class TimingKeys(Document):
    """``[timing]``, in seconds: how often the machine is read when nothing changes; pauses after a failure."""

    check: Annotated[float, Field(gt=0, le=60)] = 30
    retry_first: Seconds = 0.5
    retry_most: Annotated[float, Field(gt=0, le=60)] = 30


class Settings(Document):
    """All of it. ``element`` is this machine's name in the topology, ``sbf`` the service's address."""

    element: Name
    sbf: str
    images: Path = Path("/var/lib/virtcloud/images")
    state: Path = Path("/var/lib/virtcloud/agent")
    hypervisors: dict[Hypervisor, str] = Field(default_factory=dict)
    guests: GuestKeys = GuestKeys()
    timing: TimingKeys = TimingKeys()


def read_settings(path: Path) -> Settings:
    """Read settings; raises :class:`BadDocument` that lists every fault as ``file: key: expected …, got …``."""
    try:
        return Settings.model_validate(tomllib.loads(path.read_text()))
    except OSError as error:
        raise BadDocument(f"{path}: cannot be read: {error.strerror}; give the settings' file with --config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadDocument(f"{path}: not TOML: {error}") from error
    except ValidationError as error:
        lines = [f"{path}: {'.'.join(str(part) for part in one['loc'])}: {explain(one)}" for one in faults(error)]
        raise BadDocument("\n".join(lines)) from error
