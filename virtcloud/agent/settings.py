"""The agent's settings: a TOML file, mostly ``/etc/virtcloud/agent.toml``."""

import tomllib
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from virtcloud.model.document import Document
from virtcloud.model.documents import explain, faults
from virtcloud.model.element import Hypervisor
from virtcloud.model.errors import BadDocument
from virtcloud.model.values import Name


class GuestKeys(Document):
    """``[guests]``: how guests run here."""

    accelerator: Literal["auto", "kvm", "tcg"] = Field(
        "auto",
        description="`auto` takes KVM when libvirt lists it; `tcg` emulates the processor, for machines on which "
        "`/dev/kvm` is there and does not work.",
    )
    confined: bool = Field(default=True, description="`false` runs guests without libvirt's security driver.")
    stop_grace: float = Field(5, ge=0, le=3600, description="Seconds that a guest has to end by itself.")


class TimingKeys(Document):
    """``[timing]``, in seconds."""

    check: float = Field(
        30, gt=0, le=60, description="Seconds between two readings of the machine when nothing changes."
    )
    retry_first: float = Field(0.5, gt=0, le=60, description="Seconds before the first retry after a failure.")
    retry_most: float = Field(
        30, gt=0, le=60, description="Seconds before a retry at most; each pause is twice the last."
    )


class AgentSettings(Document):
    """All of it."""

    element: Name = Field(description="This machine's name in the topology.")
    sbf: str = Field(description="Address of SBF: `http://host:port`, `https://host` or `unix:///path`.")
    token_file: Path | None = Field(
        None,
        description="File with this agent's token, which only its owner may read; it is read at each call, so that "
        "another one is felt at once. `virtcloud token create NAME --role agent --output FILE` makes it.",
    )
    ca_file: Path | None = Field(
        None,
        description="File with the certificates (PEM) of the authority to believe, instead of this machine's.",
    )
    certificate: Path | None = Field(
        None, description="File with a certificate to show and its key (PEM), where SBF wants one."
    )
    images: Path = Field(Path("/var/lib/virtcloud/images"), description="Folder of images, `NAME/image.yaml` each.")
    state: Path = Field(
        Path("/var/lib/virtcloud/agent"), description="Folder for the lock and the guests' serial logs."
    )
    hypervisors: dict[Hypervisor, str] = Field(
        default_factory=dict,
        description='libvirt\'s address per kind: `lxc = "lxc:///system"`, `qemu = "qemu:///system"`; '
        "none on a gateway.",
    )
    guests: GuestKeys = GuestKeys()
    timing: TimingKeys = TimingKeys()


def read_settings(path: Path) -> AgentSettings:
    """Read settings; raises :class:`BadDocument` that lists every fault as ``file: key: expected …, got …``."""
    try:
        return AgentSettings.model_validate(tomllib.loads(path.read_text()))
    except OSError as error:
        raise BadDocument(f"{path}: cannot be read: {error.strerror}; give the settings' file with --config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadDocument(f"{path}: not TOML: {error}") from error
    except ValidationError as error:
        lines = [f"{path}: {'.'.join(str(part) for part in one['loc'])}: {explain(one)}" for one in faults(error)]
        raise BadDocument("\n".join(lines)) from error
