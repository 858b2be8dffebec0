"""The agent's settings: a TOML file, by default ``/etc/virtcloud/agent.toml``."""

import tomllib
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError, model_validator

from virtcloud.agent.guests.id_ranges import END, FIRST_ID
from virtcloud.model.access import ADMIT_EVERYBODY, AdmissionRule
from virtcloud.model.call_context import TelemetryKeys
from virtcloud.model.document import Document
from virtcloud.model.element import Hypervisor
from virtcloud.model.errors import BadDocument, BadInput
from virtcloud.model.validation_errors import format_validation_errors
from virtcloud.model.values import Name
from virtcloud.scheduler.scheduler_settings import SchedulerSettings


class GuestKeys(Document):
    """``[guests]``: how guests run on this host."""

    accelerator: Literal["auto", "kvm", "tcg"] = Field(
        "auto",
        description="`auto` uses KVM when libvirt lists KVM. `tcg` emulates the processor, for hosts on which "
        "`/dev/kvm` exists but does not work.",
    )
    filters: Literal["strict", "off"] = Field(
        "strict",
        description="`strict` drops frames with a foreign source address or a VLAN tag, answers of DHCP servers, "
        "router advertisements, broadcast storms, and frames of link-local protocols such as spanning tree. "
        "`off` lets guests send any frame to the site's switches, for "
        "example from nested bridges. A gateway with `off` admits no devices to its VPN.",
    )
    open_filters: bool = Field(
        default=False,
        description="`true` also runs guests of clusters with `filters: open`, which may use any MAC address and offer "
        "DHCP and router advertisements. The topology must allow these clusters too.",
    )
    confined: bool = Field(default=True, description="`false` runs guests without libvirt's security driver.")
    admits: AdmissionRule = ADMIT_EVERYBODY
    first_id: int = Field(
        FIRST_ID,
        ge=65536,
        lt=END,
        multiple_of=65536,
        description="First user and group ID of this host's containers. Each container gets the next free range of "
        "65536 IDs below 0x70000000. No account of the host and no range in `/etc/subuid` and `/etc/subgid` may have "
        "these IDs.",
    )
    pids: int = Field(
        8192,
        ge=16,
        le=4_000_000,
        description="Limit of processes and threads of a container. A spec can set a lower limit (`pids` of a guest).",
    )
    starts_per_processor: int = Field(
        3,
        ge=1,
        le=16,
        description="Limit of guests that start at the same time, for each processor of this host. On any host, at "
        "most 16 guests start at the same time. A start mostly waits for libvirt and the kernel.",
    )
    users_images: tuple[Name, ...] | None = Field(
        None,
        description="Images that users may choose in clusters that they create without a batch system. Without this "
        "key, users may choose all images. In any case, the cluster's owner needs read permission for the image.",
    )
    stop_grace: float = Field(
        5,
        ge=0,
        le=3600,
        description="Seconds in which a guest can shut down. After this time, the host ends the guest by force.",
    )


class ImageCacheKeys(Document):
    """``[image_cache]``: the cache for images of SBF's catalogue, in the subfolder `images` of the folder `state`."""

    size_mb: int = Field(
        51200,
        ge=1,
        description="Limit of the total size of all fetched images, in MiB. Images that no guest uses are removed, the "
        "least recently used first.",
    )
    unpacked_mb: int = Field(20480, ge=1, description="Largest size of one unpacked root file system in MiB.")
    urls: tuple[str, ...] | None = Field(
        None,
        description='Beginnings of the URLs from which this host fetches images, such as `["https://mirror.example.'
        'org/"]`. Without this key, the host fetches from every public address, and from no internal address.',
    )


class TimingKeys(Document):
    """``[timing]``: intervals in seconds."""

    check: float = Field(
        30,
        gt=0,
        le=60,
        description="Seconds between two readings of the host while the wanted state does not change. A gateway also "
        "resolves the names of destinations at this interval.",
    )
    retry_first: float = Field(0.5, gt=0, le=60, description="Seconds before the first retry after a failure.")
    retry_most: float = Field(
        30,
        gt=0,
        le=60,
        description="Longest pause in seconds before a retry. Each pause is twice as long as the previous pause.",
    )
    job_grace: float = Field(
        120,
        ge=0,
        le=86400,
        description="Seconds for which the batch system's lists must lack a job before the agent removes the job's "
        "cluster. If a list during this time contains the job, the cluster remains. After two minutes without a list, "
        "this time starts again at the next list.",
    )


class AgentSettings(Document):
    """All settings of the agent."""

    element: Name | None = Field(
        None,
        description="Name of this host or gateway in the topology. Without this key, the agent only serves the "
        "scheduler (table `[scheduler]`).",
    )
    sbf: str = Field(description="Address of SBF: `http://host:port`, `https://host` or `unix:///path`.")
    token_file: Path | None = Field(
        None,
        description="File with the agent's token; only the file's owner may have read permission. The agent reads the "
        "file before each call, so that a new token takes effect immediately. `virtcloud token create NAME --role "
        "agent --output FILE` creates the file.",
    )
    ca_file: Path | None = Field(
        None,
        description="File with the certificates (PEM) of the trusted authority. Without this key, the agent trusts the "
        "authorities that this host trusts.",
    )
    certificate: Path | None = Field(
        None, description="File with a client certificate and its key (PEM), if SBF requires a client certificate."
    )
    images: Path = Field(
        Path("/var/lib/virtcloud/images"),
        description="Folder of images; the file `NAME/image.yaml` describes an image.",
    )
    state: Path = Field(
        Path("/var/lib/virtcloud/agent"),
        description="Folder for the agent's lock file, the job records, the guests' disks and console logs, images "
        "of SBF's catalogue, the former configuration of the host's uplinks, the files of the agent's servers (DHCP, "
        "DNS, VPN, SSH and NFS), the addresses of FQDNs, and the host's last boot.",
    )
    socket: Path = Field(
        Path("/run/virtcloud/agent.sock"),
        description="Path of the job socket, to which the batch system's hooks connect.",
    )
    socket_uids: tuple[int, ...] = Field((), description="User IDs that may use the job socket, besides root.")
    jobs: Path = Field(Path("/run/virtcloud/jobs"), description="Parent folder of the folders with jobs' files.")
    namespaces: Path = Field(
        Path("/run/virtcloud/namespaces"),
        description="Folder of a gateway's network namespaces. Each file is the namespace of the gateway in one "
        "network: `nsenter --net=FILE ip address`.",
    )
    hypervisors: dict[Hypervisor, str] = Field(
        default_factory=dict,
        description="Address of libvirt for each kind of hypervisor: "
        '`lxc = "lxc:///system"`, `qemu = "qemu:///system"`. With `qemu = "xen:///system"`, virtual machines run on '
        "Xen; virtcloud's tests do not cover Xen. A gateway needs no hypervisor.",
    )
    bridged_frames_filtered: Literal["refuse", "accept"] = Field(
        "refuse",
        description="Reaction when the host's packet filter receives the frames of all bridges (the sysctls "
        "`net.bridge.bridge-nf-call-iptables` and `…-ip6tables`, which Docker sets). `refuse`: the agent does not "
        "create segments, since clusters with the same addresses would share tracked connections. `accept`: the agent "
        "creates segments anyway.",
    )
    guests: GuestKeys = GuestKeys()
    image_cache: ImageCacheKeys = ImageCacheKeys()
    timing: TimingKeys = TimingKeys()
    telemetry: TelemetryKeys = TelemetryKeys()
    scheduler: SchedulerSettings | None = Field(
        None, description="Settings for the host of the scheduler. The same host may also be an `element`."
    )

    @model_validator(mode="after")
    def _has_a_role(self) -> Self:
        if self.element is None and self.scheduler is None:
            raise BadInput("expected element, a table [scheduler], or both; got neither", ("element",))
        return self


def read_settings(path: Path) -> AgentSettings:
    """Read the settings. Raise BadDocument with a line ``file: key: expected …, got …`` for each fault."""
    try:
        return AgentSettings.model_validate(tomllib.loads(path.read_text(encoding="utf-8-sig")))
    except OSError as error:
        raise BadDocument(f"{path}: cannot be read: {error.strerror}; name the settings file with --config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadDocument(f"{path}: not TOML: {error}") from error
    except ValidationError as error:
        raise BadDocument(format_validation_errors(error, f"{path}: ")) from error
