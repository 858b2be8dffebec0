"""The agent's settings: a TOML file, by default ``/etc/virtcloud/agent.toml``."""

import tomllib
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError, model_validator

from virtcloud.model.access import ADMIT_EVERYBODY, AdmissionRule
from virtcloud.model.document import Document, format_validation_errors
from virtcloud.model.element import Hypervisor
from virtcloud.model.errors import BadDocument, BadInput
from virtcloud.model.values import Name
from virtcloud.scheduler.scheduler_settings import SchedulerSettings


class GuestKeys(Document):
    """``[guests]``: how guests run here."""

    accelerator: Literal["auto", "kvm", "tcg"] = Field(
        "auto",
        description="`auto` uses KVM when libvirt lists it; `tcg` emulates the processor, for machines on which "
        "`/dev/kvm` exists and does not work.",
    )
    confined: bool = Field(default=True, description="`false` runs guests without libvirt's security driver.")
    admits: AdmissionRule = ADMIT_EVERYBODY
    users_images: tuple[Name, ...] | None = Field(
        None,
        description="Images that users may name who create clusters themselves, without a batch system; without this "
        "key, any image. An image must be readable by the cluster's owner in any case.",
    )
    stop_grace: float = Field(5, ge=0, le=3600, description="Seconds that a guest may take to shut down.")


class TimingKeys(Document):
    """``[timing]``, in seconds."""

    check: float = Field(30, gt=0, le=60, description="Seconds between two readings of an unchanged machine.")
    retry_first: float = Field(0.5, gt=0, le=60, description="Seconds before the first retry after a failure.")
    retry_most: float = Field(
        30, gt=0, le=60, description="Longest pause in seconds before a retry; each pause is twice the last."
    )
    job_grace: float = Field(
        120,
        ge=0,
        le=86400,
        description="Seconds that a job's cluster remains when the batch system on this host no longer has the job: "
        "it is removed when the job is missing again so much later.",
    )


class AgentSettings(Document):
    """All settings of the agent."""

    element: Name | None = Field(
        None, description="This machine's name in the topology; without it, the agent reconciles no machine."
    )
    sbf: str = Field(description="Address of SBF: `http://host:port`, `https://host` or `unix:///path`.")
    token_file: Path | None = Field(
        None,
        description="File with the agent's token, which only its owner may read. It is read at each call, so that a "
        "new token takes effect at once. `virtcloud token create NAME --role agent --output FILE` creates it.",
    )
    ca_file: Path | None = Field(
        None,
        description="File with the certificates (PEM) of the trusted authority, instead of this machine's.",
    )
    certificate: Path | None = Field(
        None, description="File with a client certificate and its key (PEM), if SBF requires one."
    )
    images: Path = Field(Path("/var/lib/virtcloud/images"), description="Folder of images, `NAME/image.yaml` each.")
    state: Path = Field(
        Path("/var/lib/virtcloud/agent"),
        description="Folder for the lock, the job records, the guests' disks and console logs, and the former states "
        "of the host's uplinks.",
    )
    socket: Path = Field(
        Path("/run/virtcloud/agent.sock"), description="The job socket: a batch system's hooks connect to it."
    )
    socket_uids: tuple[int, ...] = Field((), description="User IDs that may use the job socket, besides root.")
    jobs: Path = Field(
        Path("/run/virtcloud/jobs"), description="Folder of the jobs' files, with a folder for each job."
    )
    hypervisors: dict[Hypervisor, str] = Field(
        default_factory=dict,
        description='libvirt\'s address per kind: `lxc = "lxc:///system"`, `qemu = "qemu:///system"`; '
        "none on a gateway.",
    )
    bridged_frames_filtered: Literal["refuse", "accept"] = Field(
        "refuse",
        description="What to do when the host's packet filter gets the frames of all bridges (the sysctls "
        "`net.bridge.bridge-nf-call-iptables` and `…-ip6tables`, which Docker sets): `refuse` builds no segment then, "
        "since clusters with the same addresses would share tracked connections; `accept` builds it nevertheless.",
    )
    guests: GuestKeys = GuestKeys()
    timing: TimingKeys = TimingKeys()
    scheduler: SchedulerSettings | None = Field(
        None, description="Settings of the scheduler's host, which may also be an `element`."
    )

    @model_validator(mode="after")
    def _has_a_role(self) -> Self:
        if self.element is None and self.scheduler is None:
            raise BadInput("expected element, or a table [scheduler], or both; got neither", ("element",))
        return self


def read_settings(path: Path) -> AgentSettings:
    """Read the settings. Raise BadDocument, which lists every fault as ``file: key: expected …, got …``."""
    try:
        return AgentSettings.model_validate(tomllib.loads(path.read_text()))
    except OSError as error:
        raise BadDocument(f"{path}: cannot be read: {error.strerror}; name the settings file with --config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadDocument(f"{path}: not TOML: {error}") from error
    except ValidationError as error:
        raise BadDocument(format_validation_errors(error, f"{path}: ")) from error
