"""Checks of the guests, disks, images and reports of a host after each step."""

import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from support.fake_machine import FakeKernel
from support.guest_machine.clusters import ClusterSbf
from support.guest_machine.hypervisors import HostHypervisor, MountedFolders, choose_kind, is_guest
from support.guest_machine.image_server import ImageServer
from support.guest_machine.interruptions import Interruptions, Turns
from virtcloud.agent.difference import digest
from virtcloud.agent.guests.domains import GuestDomain
from virtcloud.agent.guests.guests import LocalGuests
from virtcloud.agent.guests.image_folder import read_size
from virtcloud.agent.network import names
from virtcloud.model.element import Hypervisor
from virtcloud.model.errors import Refused
from virtcloud.model.image import ImageSource
from virtcloud.model.wanted import GuestWanted, Segment

CACHE_BYTES = 7200
UNPACKED_BYTES = 4000
GUEST_PART = 256
"""The position in a disk's file at which a guest writes."""


class CheckedHost:
    """The parts of a host, and the checks of their state."""

    folder: Path
    images: Path
    state: Path
    logs: Path
    interruptions: Interruptions
    turns: Turns
    sbf: ClusterSbf
    server: ImageServer
    mounts: MountedFolders
    kernel: FakeKernel
    guests: LocalGuests
    hypervisors: dict[Hypervisor, HostHypervisor]

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.tokens = 0
        self.written: dict[tuple[str, str], tuple[object, str]] = {}
        """What each guest wrote to each of its disks, and what determines whether the disk is kept."""
        self.used_images: dict[str, tuple[Path, int]] = {}
        """The image of each guest that has a folder: path and inode number. Without images that a program deleted."""
        self.late: dict[str, bool] = {}
        """For each domain that ended by itself: whether the agent has noticed the end.

        The agent restarts the domain after a pause.
        """
        self.cloning: dict[str, ExitStack] = {}

    def list_running(self) -> Iterator[tuple[HostHypervisor, GuestDomain]]:
        return (
            (one, domain) for one in self.hypervisors.values() for domain in one.by_name.values() if is_guest(domain)
        )

    def find_users(self, path: Path) -> list[str]:
        return [
            domain.name
            for one, domain in self.list_running()
            if any(source == path or path in source.parents for source in one.sources.get(domain.name, ()))
        ]

    def wants(self, domain: GuestDomain) -> bool:
        """Return whether SBF wants a domain to run."""
        return any(
            names.domain_name(segment.id, guest.name) == domain.name
            and guest.power is None
            and domain.owner is not None
            and digest(segment, guest) == domain.owner.digest
            for segment in self.sbf.document.wanted.segments
            for guest in segment.guests
        )

    def check_stop(self, hypervisor: HostHypervisor, name: str) -> None:
        domain = hypervisor.by_name.get(name)
        if domain is None:
            return
        if domain.owner is None or domain.name != names.domain_name(domain.owner.cluster, domain.owner.guest):
            self.violations.append(f"the foreign domain {name} is stopped")
        elif name not in hypervisor.ending and self.wants(domain):
            self.violations.append(f"the wanted guest {name} is stopped")

    def use_disks(self, name: str, paths: Iterable[Path]) -> None:
        """Write to a guest's disks. Check that each disk still contains what the guest wrote before."""
        kept = {path.name for path in paths}
        self.written = {key: one for key, one in self.written.items() if key[0] != name or key[1] in kept}
        for path in paths:
            if len(self.find_users(path)) > 1:
                self.violations.append(f"{path} has two running guests: {self.find_users(path)}")
            if not path.is_relative_to(self.state / "guests" / name):
                self.violations.append(f"{name} writes to {path}")
            with self.interruptions.paused():
                token, former = self._write_token(path), self.written.get((name, path.name))
            origin = self._find_origin(name, path)
            if former is not None and former[0] == origin and former[1] != token:
                self.violations.append(f"{path} lost what the guest wrote: {former} {origin} {token}")
            self.written[name, path.name] = origin, token
        self._record_image(name)

    def _record_image(self, name: str) -> None:
        self.used_images.pop(name, None)
        guest = next(
            guest for segment, guest in self.list_wanted() if names.domain_name(segment.id, guest.name) == name
        )
        if guest.image_source is not None:
            path = self.find_image(guest.image, guest.image_source)
            self.used_images[name] = path, path.stat().st_ino

    def check_images(self) -> None:
        """Check that the images of all guests are present, and that the cache is not too large."""
        images = {
            names.domain_name(segment.id, guest.name): self.find_image(guest.image, guest.image_source)
            for segment, guest in self.list_wanted()
            if not self.find_users(self.state / "guests" / names.domain_name(segment.id, guest.name))
        }
        for name, (path, inode) in list(self.used_images.items()):
            if not (self.state / "guests" / name).exists():
                del self.used_images[name]
            elif name in images and images[name] != path:
                del self.used_images[name]  # the guest needs another image now
            elif not path.exists() or path.stat().st_ino != inode:
                self.violations.append(f"the image {path} of {name} was evicted")
        wanted = {names.domain_name(segment.id, guest.name) for segment, guest in self.list_wanted()}
        gone = {name for name, _ in self.written if name not in wanted and not (self.state / "guests" / name).exists()}
        self.written = {key: one for key, one in self.written.items() if key[0] not in gone}
        ready = (self.state / "images").glob("[0-9a-f]*/size")
        if sum(int(path.read_text() or 0) for path in ready) > CACHE_BYTES:
            self.violations.append("the cache is too large")
        for name, data in self.server.data.items():
            path = self.find_image(name, self.server.source(name))
            if path.is_file() and path.read_bytes() != data:
                self.violations.append(f"{path} has a wrong content")

    def list_wanted(self) -> list[tuple[Segment, GuestWanted]]:
        return [(segment, guest) for segment in self.sbf.document.wanted.segments for guest in segment.guests]

    def check_reports(self) -> None:
        """Check each guest that should run but does not.

        SBF must know why this guest does not run, or why another guest of the same cluster does not run.
        """
        missing: dict[str, set[str]] = {}
        for _, segment, guest in self.list_missing():
            missing.setdefault(guest.cluster or segment.id, {"libvirt"}).update((guest.name, guest.image))
        for name, segment, guest in self.list_missing():
            cluster = guest.cluster or segment.id
            text = self.sbf.known.get(cluster, "") + self.sbf.known.get("", "")
            waits = guest.image not in self.list_ready()  # an error report of the host lists no running fetches
            if not any(word in text for word in missing[cluster]) and not (waits and "" in self.sbf.known):
                self.violations.append(f"SBF does not know why {name} does not run: {self.sbf.known}")

    def list_missing(self) -> list[tuple[str, Segment, GuestWanted]]:
        running = {domain.name for _, domain in self.list_running() if self.wants(domain)}
        wanted = [(names.domain_name(segment.id, guest.name), segment, guest) for segment, guest in self.list_wanted()]
        return [one for one in wanted if one[2].power is None and one[0] not in running]

    def check_isolation(self, ready: Collection[str], foreign: Collection[str]) -> None:
        """Check that each guest runs if no fault concerns it.

        ``ready`` are the images that were present before the reconciliation.
        """
        faulty = {kind for kind, hypervisor in self.hypervisors.items() if hypervisor.fault}
        affected = {domain.owner.cluster for one, domain in self.list_running() if domain.owner and one.kind in faulty}
        affected |= {one.id for one, guest in self.list_wanted() if choose_kind(guest.image) in faulty}
        for name, segment, guest in self.list_missing():
            excused = name in {*foreign, *self.late, *self.cloning} or segment.id in affected
            if guest.image in ready and not excused:
                self.violations.append(f"{name} does not run: {self.sbf.known}")

    def list_ready(self) -> list[str]:
        host = [name for name in ("busybox", "kernel", "golden") if (self.images / name / "image.yaml").exists()]
        return host + [name for name in self.server.data if self.find_image(name, self.server.source(name)).exists()]

    def delete_file(self, number: int) -> None:
        """Delete a disk of a guest, a record of a disk, or an image of the cache, as another program could."""
        guests, images = self.state / "guests", self.state / "images"
        found = [*guests.glob("*/disk*.*"), *guests.glob("*/root.json"), *images.glob("[0-9a-f]*/*")]
        if found:
            path = sorted(found)[number % len(found)]
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            domain = path.parent.name
            self.written = {key: one for key, one in self.written.items() if key[0] != domain}
            self.used_images = {key: one for key, one in self.used_images.items() if one[0].parent.name != domain}
            for name, (image, _) in list(self.used_images.items()):
                if not image.exists():
                    del self.used_images[name]

    def begin_clone(self, segment: Segment, guest: GuestWanted) -> None:
        """Reserve a stopped guest for a clone, as `GuestCloner` does."""
        name, stack = names.domain_name(segment.id, guest.name), ExitStack()
        if guest.power == "off" and name not in self.cloning and not self.find_users(self.state / "guests" / name):
            with suppress(Refused):
                stack.enter_context(self.guests.root_reservations.for_reading(name, guest.name))
                self.cloning[name] = stack

    def end_clones(self) -> None:
        for stack in self.cloning.values():
            stack.close()
        self.cloning = {}

    def _write_token(self, path: Path) -> str:
        self.tokens += 1
        token = f"{self.tokens:016}"
        if path.is_dir():
            file = path / "token"
            if not file.exists():
                file.write_text(token)
            return file.read_text()
        with path.open("r+b") as opened:
            opened.seek(GUEST_PART)
            former = opened.read(16)
            if former.strip(b"\0"):
                return former.decode()
            opened.seek(GUEST_PART)
            opened.write(token.encode())
            return token

    def _find_origin(self, name: str, path: Path) -> object:
        """Return what determines whether a disk is kept: its size, and for the first disk also its image."""
        for segment in self.sbf.document.wanted.segments:
            for guest in segment.guests:
                if names.domain_name(segment.id, guest.name) == name:
                    if path.name not in {"disk.qcow2", "root"}:
                        return next(one.size_mb for one in guest.disks or () if one.name in path.name)
                    source = self.find_image(guest.image, guest.image_source)
                    status = source.stat()
                    return guest.limits and guest.limits.disk_mb, str(source), status.st_ino, status.st_mtime_ns
        return None

    def fits_cache(self) -> bool:
        """Return whether the cache has room for all images that guests need or have."""
        guests = [guest for segment in self.sbf.document.wanted.segments for guest in segment.guests]
        needed = {str(guest.image_source.sha256) for guest in guests if guest.image_source}
        for path in (self.state / "guests").glob("*/image.sha256"):
            needed.update(path.read_text().split())
        sizes = {str(self.server.source(name).sha256): len(data) for name, data in self.server.data.items()}
        root = str(self.server.source("root1").sha256)
        sizes[root] = UNPACKED_BYTES
        # If a program deleted the file `size`, the agent adds up the sizes of files and folders.
        return sum(max(sizes[name], read_size(self.state / "images" / name)) for name in needed) <= CACHE_BYTES

    def check_empty(self) -> None:
        """Assert that nothing of ended clusters remains, except cached images."""
        assert list(self.list_running()) == []
        assert self.kernel.names == {"eth0"}
        assert [path.name for path in (self.state / "guests").glob("*")] == []
        assert list(self.logs.glob("*/*")) == []
        assert self.mounts.contents == {}
        assert self.turns.parked == []
        files = [path for path in (self.state / "images").rglob("*") if path.is_file()]
        assert sum(path.stat().st_size for path in files) <= CACHE_BYTES, files

    def find_image(self, name: str, source: ImageSource | None) -> Path:
        if source is None:
            return self.images / name / ("rootfs" if name == "busybox" else "disk.raw")
        return self.state / "images" / source.sha256 / ("rootfs" if name == "root1" else "disk.raw")
