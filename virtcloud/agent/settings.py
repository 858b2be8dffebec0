"""The agent's settings: a TOML file, mostly ``/etc/virtcloud/agent.toml``."""

import tomllib
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from virtcloud.model.access import ADMIT_EVERYBODY, AdmissionRule
from virtcloud.model.document import Document, explain_validation_error, list_validation_errors
from virtcloud.model.element import Hypervisor
from virtcloud.model.errors import BadDocument, BadInput
from virtcloud.model.values import Name
from virtcloud.scheduler.scheduler_settings import SchedulerSettings


class GuestKeys(Document):
    """``[guests]``: how guests run here."""

    accelerator: Literal["auto", "kvm", "tcg"] = Field(
        "auto",
        description="`auto` takes KVM when libvirt lists it; `tcg` emulates the processor, for machines on which "
        "`/dev/kvm` is there and does not work.",
    )
    confined: bool = Field(default=True, description="`false` runs guests without libvirt's security driver.")
    admits: AdmissionRule = ADMIT_EVERYBODY
    users_images: tuple[Name, ...] | None = Field(
        None,
        description="Images that users may name who ask for clusters themselves, without a batch system; any without "
        "it. An image must be readable by the cluster's owner in any case.",
    )
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
    job_grace: float = Field(
        120,
        ge=0,
        le=86400,
        description="Seconds that a job's cluster stays when the batch system on this host has the job no more: it is "
        "removed when it is missed again so much later.",
    )


class AgentSettings(Document):
    """All of it."""

    element: Name | None = Field(
        None, description="This machine's name in the topology; without it, this agent converges no machine."
    )
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
        Path("/var/lib/virtcloud/agent"),
        description="Folder for the lock, the jobs known here, the guests' disks and consoles' logs, and what the "
        "host's interfaces were like before they were taken.",
    )
    socket: Path = Field(
        Path("/run/virtcloud/agent.sock"), description="Socket on which a batch system's hooks ask about their jobs."
    )
    socket_uids: tuple[int, ...] = Field((), description="Numbers of users who may ask there, besides root.")
    jobs: Path = Field(
        Path("/run/virtcloud/jobs"), description="Folder of the files that jobs find, a folder for each job."
    )
    hypervisors: dict[Hypervisor, str] = Field(
        default_factory=dict,
        description='libvirt\'s address per kind: `lxc = "lxc:///system"`, `qemu = "qemu:///system"`; '
        "none on a gateway.",
    )
    bridged_frames_filtered: Literal["refuse", "accept"] = Field(
        "refuse",
        description="What to do where the host's packet filter gets the frames of all bridges (the sysctls "
        "`net.bridge.bridge-nf-call-iptables` and `…-ip6tables`, which Docker sets): `refuse` makes no network then, "
        "since clusters with the same addresses would share tracked connections; `accept` makes it all the same.",
    )
    guests: GuestKeys = GuestKeys()
    timing: TimingKeys = TimingKeys()
    scheduler: SchedulerSettings | None = Field(
        None, description="The role of the scheduler's host, beside that of `element` or without it."
    )

    @model_validator(mode="after")
    def _has_a_role(self) -> Self:
        if self.element is None and self.scheduler is None:
            raise BadInput("expected element, or a table [scheduler], or both; got neither", ("element",))
        return self


def read_settings(path: Path) -> AgentSettings:
    """Read settings; raises :class:`BadDocument` that lists every fault as ``file: key: expected …, got …``."""
    try:
        return AgentSettings.model_validate(tomllib.loads(path.read_text()))
    except OSError as error:
        raise BadDocument(f"{path}: cannot be read: {error.strerror}; give the settings' file with --config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadDocument(f"{path}: not TOML: {error}") from error
    except ValidationError as error:
        raise BadDocument(
            "\n".join(f"{path}: {_key(one)}: {explain_validation_error(one)}" for one in list_validation_errors(error))
        ) from error


def _key(fault: ErrorDetails) -> str:
    path = fault["loc"] or getattr(fault.get("ctx", {}).get("error"), "path", ())
    return ".".join(str(part) for part in path)
