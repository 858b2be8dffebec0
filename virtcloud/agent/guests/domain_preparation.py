"""Preparation of a guest's domain: image, disks, seed, and a container's root file system and control group.

All steps are idempotent.
"""

import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from virtcloud.agent.guests.admission_rules import NO_RULES, AdmissionRules
from virtcloud.agent.guests.container_disks import ensure_container_disks
from virtcloud.agent.guests.container_seeds import write_container_seed
from virtcloud.agent.guests.control_groups import ContainerGroups, ContainerLimits
from virtcloud.agent.guests.domains import DomainEnvironment, HypervisorApi
from virtcloud.agent.guests.guest_disks import ensure_disks
from virtcloud.agent.guests.guest_files import GuestFiles
from virtcloud.agent.guests.guest_roots import ContainerRoots
from virtcloud.agent.guests.id_ranges import FIRST_ID
from virtcloud.agent.guests.image_cache import ImageCache
from virtcloud.agent.guests.image_folder import end_former_uses
from virtcloud.agent.guests.images import GuestImage, LxcImage, QemuImage, read_image
from virtcloud.agent.guests.peer_files import render_peer_files, write_peer_files
from virtcloud.agent.guests.rooted_files import GuestRoot
from virtcloud.agent.guests.seed_images import write_seed_image
from virtcloud.agent.guests.seeds import render_nocloud
from virtcloud.agent.network import names
from virtcloud.model.errors import Refused
from virtcloud.model.wanted import GuestWanted, Segment

MAX_PIDS = 8192


@dataclass(frozen=True, slots=True)
class GuestSettings:
    """Settings of guests on this host.

    ``images`` is the folder of images. ``folders`` is the parent folder of the guests' folders. A guest that has not
    shut down after ``stop_grace_s`` seconds is destroyed. A container's users are mapped to host user IDs from
    ``first_id`` on. Each container has at most ``pids`` processes.
    """

    images: Path
    folders: Path
    architecture: str
    accelerator: Literal["auto", "kvm", "tcg"] = "auto"
    confined: bool = True
    stop_grace_s: float = 5.0
    admission: AdmissionRules = NO_RULES
    first_id: int = FIRST_ID
    pids: int = MAX_PIDS


@dataclass(frozen=True, slots=True)
class DomainPreparation:
    """Prepares the domains of this host's guests. ``cache`` has the images of SBF's catalogue."""

    settings: GuestSettings
    roots: ContainerRoots
    groups: ContainerGroups
    files: GuestFiles
    cache: ImageCache | None

    def find_image(self, name: str, guest: GuestWanted) -> GuestImage:
        """Return the image of a guest. ``name`` is the name of the guest's domain.

        Raise Refused if the image is missing, and StepPending while the image is being fetched from SBF's catalogue.
        """
        if guest.image_source is None:
            return read_image(self.settings.images, guest.image)
        if self.cache is None:
            raise Refused(f"guest {guest.name}: this host has no cache for image {guest.image} of SBF's catalogue")
        return self.cache.require(guest.image, guest.image_source, self.settings.folders / name)

    def end_former_uses(self, name: str, guest: GuestWanted) -> None:
        """Permit the eviction of the images of a guest's former domains, of which none runs any more.

        Raise Refused if the permission cannot be recorded.
        """
        if guest.image_source is not None:
            end_former_uses(guest.image_source, self.settings.folders / name)

    def prepare(
        self,
        segment: Segment,
        guest: GuestWanted,
        image: GuestImage,
        hypervisor: HypervisorApi,
        limits: ContainerLimits | None,
    ) -> DomainEnvironment:
        """Create the files, mounts and control groups of a stopped guest's domain, and write the guest's seed."""
        name = names.domain_name(segment.id, guest.name)
        if isinstance(image, QemuImage):
            environment = self._prepare_machine(name, guest, image, hypervisor)
        else:
            environment = self._prepare_container(name, guest, image, hypervisor, limits)
        _write_seed(segment, guest, environment.folder, environment.root)
        return environment

    def _prepare_machine(
        self, name: str, guest: GuestWanted, image: QemuImage, hypervisor: HypervisorApi
    ) -> DomainEnvironment:
        folder = self.files.ensure(name)
        ensure_disks(folder, image, guest)
        shared = image.disk is not None and bool(image.disk.stat().st_mode & stat.S_IROTH)
        return replace(self._make_environment(image, hypervisor, folder), shared=shared)

    def _prepare_container(
        self,
        name: str,
        guest: GuestWanted,
        image: LxcImage,
        hypervisor: HypervisorApi,
        limits: ContainerLimits | None,
    ) -> DomainEnvironment:
        folder = self.files.ensure(name)
        # Before the mount, kill the processes of a former container, which must not use the mounted root.
        group = self.groups.ensure(name, limits) if limits else None
        root = self.roots.ensure(name, image.rootfs, guest.limits.disk_mb if guest.limits else None)
        ensure_container_disks(folder, guest, root.id_shift)
        return replace(self._make_environment(image, hypervisor, folder), root=root, group=group)

    def _make_environment(self, image: GuestImage, hypervisor: HypervisorApi, folder: Path) -> DomainEnvironment:
        xen, accelerator = hypervisor.is_xen(), self.settings.accelerator
        may_accelerate = isinstance(image, QemuImage) and not xen
        accelerated = may_accelerate and (accelerator == "kvm" or (accelerator == "auto" and hypervisor.has_kvm()))
        return DomainEnvironment(self.settings.architecture, folder, accelerated, self.settings.confined, xen=xen)


def _write_seed(segment: Segment, guest: GuestWanted, folder: Path, root: GuestRoot | None) -> None:
    if guest.seed is None:
        return
    files = render_peer_files(segment, guest)
    if root is None:
        write_seed_image(folder, render_nocloud(segment, guest, guest.seed, files))
    else:
        write_peer_files(folder, files)
        write_container_seed(root, segment, guest, guest.seed)
