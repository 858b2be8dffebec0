"""Reading, starting and stopping the guests of this host. All operations are idempotent.

Several threads can start different guests at the same time.
"""

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from contextlib import suppress

from virtcloud.agent.difference import digest
from virtcloud.agent.guest_ends import EndCause
from virtcloud.agent.guests.consoles import GuestConsoles
from virtcloud.agent.guests.control_groups import ContainerGroups, ControlGroups, choose_limits
from virtcloud.agent.guests.domain_preparation import DomainPreparation, GuestSettings
from virtcloud.agent.guests.domain_xml import render_domain
from virtcloud.agent.guests.domains import GuestDomain, HypervisorApi
from virtcloud.agent.guests.guest_files import GuestFiles
from virtcloud.agent.guests.guest_roots import ContainerRoots, GuestRoots
from virtcloud.agent.guests.host_hypervisors import HostHypervisors, set_mtu
from virtcloud.agent.guests.image_cache import ImageCache
from virtcloud.agent.guests.images import LxcImage
from virtcloud.agent.guests.memory_kills import MemoryKills
from virtcloud.agent.guests.peer_files import hash_peer_files, read_peer_files, render_peer_files, write_peer_files
from virtcloud.agent.guests.root_reservations import RootReservations
from virtcloud.agent.guests.rooted_files import RootedFiles
from virtcloud.agent.network import names
from virtcloud.agent.observed_host import ObservedGuest
from virtcloud.model.element import Hypervisor as Kind
from virtcloud.model.errors import Refused, Unreachable, Unsafe
from virtcloud.model.wanted import GuestWanted, HostWanted, Segment


class LocalGuests:
    """The guests on all hypervisors of this host."""

    def __init__(  # noqa: PLR0913, PLR0917 - the dependencies
        self,
        hypervisors: Mapping[Kind, HypervisorApi],
        settings: GuestSettings,
        pause: Callable[[float], None],
        roots: ContainerRoots | None = None,
        cache: ImageCache | None = None,
        consoles: GuestConsoles | None = None,
        groups: ContainerGroups | None = None,
        kills: MemoryKills | None = None,
        progress: Callable[[], object] = lambda: None,
    ) -> None:
        """Create an object that runs guests on ``hypervisors``. ``pause`` waits some seconds, or raises StopRequested.

        ``roots`` defaults to a `GuestRoots` that uses the guests' folders, and ``groups`` to a `ControlGroups`.
        ``progress`` is called while files of guests are removed, and while files of a container get other owners.
        """
        self._kills = kills
        self._consoles = consoles
        self._hypervisors = HostHypervisors(hypervisors, pause)
        self._settings = settings
        self._roots = roots or GuestRoots(settings.folders, settings.first_id, progress)
        groups = groups or ControlGroups()
        self.root_reservations = RootReservations(self._roots, settings.folders)
        self._files = GuestFiles(settings.folders, self._roots, groups, progress)
        self._preparation = DomainPreparation(settings, self._roots, groups, self._files, cache)

    def read(self) -> tuple[tuple[ObservedGuest, ...], tuple[str, ...]]:
        """Return the guests that virtcloud created, and an error for each hypervisor without an answer."""
        domains, unreachable = self._hypervisors.list_domains()
        if self._kills:
            self._kills.read()
        self._add_consoles(domains)
        for domain in (domain for _, domain in domains if domain.owner and domain.running):
            self._files.limit_started(domain.name)
        observed = (
            ObservedGuest(
                domain.owner.cluster,
                domain.owner.guest,
                domain.owner.digest,
                domain.running,
                # A virtual machine that was a container before may still have its folder of peer files.
                self._hash_peer_files(domain.name) if self._hypervisors.runs_containers(hypervisor) else None,
                domain.owner.starts,
            )
            for hypervisor, domain in domains
            if domain.owner
        )
        return tuple(observed), tuple(unreachable)

    def ensure_guest(self, segment: Segment, guest: GuestWanted) -> None:
        """Start a guest, unless the guest already runs in the wanted state.

        A guest in another state is stopped first. Raise Unsafe if a foreign domain, or a domain of another cluster, has
        the guest's domain name. Raise Refused if the guest cannot be started, for example because of the admission
        rules. Raise Unreachable if libvirt does not answer. Raise StepPending while the image is being fetched or the
        guest is being cloned.
        """
        with self.root_reservations.for_start(names.domain_name(segment.id, guest.name), guest.name):
            self._ensure_guest(segment, guest)

    def _ensure_guest(self, segment: Segment, guest: GuestWanted) -> None:
        name, wanted_digest = names.domain_name(segment.id, guest.name), digest(segment, guest)
        self._settings.admission.check(segment, guest, self._settings.images)
        image = self._preparation.find_image(name, guest)
        hypervisor = self._hypervisors.select(image, guest)
        domains, is_complete = self._hypervisors.find_domains(name, hypervisor)
        for existing in domains:
            _check_ownership(existing, segment)
            if existing.running and existing.owner and existing.owner.digest == wanted_digest:
                set_mtu(hypervisor, name, segment)
                return
            self.ensure_no_guests(segment.id, (guest.name,), (guest.name,))
        if is_complete:
            self._preparation.end_former_uses(name, guest)
        limits = choose_limits(guest, self._settings.pids) if isinstance(image, LxcImage) else None
        environment = self._preparation.prepare(segment, guest, image, hypervisor, limits)
        self._remove_console(name)
        self._files.request_limit(name, limits)
        hypervisor.start(render_domain(segment, guest, image, wanted_digest, environment))
        self._files.limit_started(name)
        # Connect the console now: the next call of `read` would lose the guest's earlier output.
        self._add_consoles((hypervisor, domain) for domain in [hypervisor.find_domain(name)] if domain)
        set_mtu(hypervisor, name, segment)
        if not is_complete:  # the start succeeded, so no former domain runs on another hypervisor (`find_domains`)
            self._preparation.end_former_uses(name, guest)

    def find_end_cause(self, cluster: str, guest: str, within_s: float) -> EndCause:
        """Return why a guest ended by itself within the last ``within_s`` seconds.

        Return UNKNOWN if the kernel's log does not show the cause.
        """
        return self._kills.find_cause(names.domain_name(cluster, guest), within_s) if self._kills else EndCause.UNKNOWN

    def ensure_mtu(self, segment: Segment) -> None:
        """Set the MTU of all running guests of the segment. Errors of single guests are only logged.

        Raise Unreachable if the segment has guests and a hypervisor does not answer.
        """
        if segment.mtu is None:
            return
        domains, unreachable = self._hypervisors.list_domains()
        for hypervisor, domain in domains:
            if domain.running and domain.owner and domain.owner.cluster == segment.id:
                set_mtu(hypervisor, domain.name, segment)
        if unreachable and segment.guests:
            raise Unreachable("; ".join(unreachable))

    def write_peer_files(self, segment: Segment, guest: GuestWanted) -> None:
        """Replace the peer files of a running container. Raise Refused if the files cannot be written."""
        folder = self._settings.folders / names.domain_name(segment.id, guest.name)
        write_peer_files(folder, render_peer_files(segment, guest))

    def _hash_peer_files(self, domain: str) -> str | None:
        files = read_peer_files(self._settings.folders / domain)
        return None if files is None else hash_peer_files(files)

    def ensure_no_guests(self, cluster: str, guests: tuple[str, ...], kept: tuple[str, ...] = ()) -> None:
        """Stop all ``guests`` at the same time.

        Request the shutdown of each guest, and destroy the guests that still run after the grace period. Then remove
        the disks and logs of the ended guests that are not in ``kept``. If a hypervisor does not answer, keep the disks
        and logs of guests that no hypervisor lists: these guests may run on the silent hypervisor.

        Stop all other guests even if a guest cannot be destroyed. Then raise Refused, or Unreachable if this guest's
        hypervisor does not answer. Also raise Unreachable if a guest may run on a hypervisor that does not list its
        domains.
        """
        domains, unreachable = self._hypervisors.list_domains()
        owned = [
            (hypervisor, domain)
            for hypervisor, domain in domains
            if domain.owner and domain.owner.cluster == cluster and domain.owner.guest in guests
        ]
        for hypervisor, domain in owned:
            with suppress(Unreachable):  # `destroy` returns the error
                hypervisor.shut_down(domain.name, systemd=self._has_systemd(domain.name))
        leaving = [(hypervisor, domain.name) for hypervisor, domain in owned]
        self._hypervisors.wait_for_end(leaving, self._settings.stop_grace_s)
        failures = self._hypervisors.destroy(leaving)
        stopped = [name for _, name in leaving if name not in failures]
        if not unreachable:
            present = {domain.name for _, domain in domains}
            stopped += [name for guest in guests if (name := names.domain_name(cluster, guest)) not in present]
        self._forget_stopped(stopped, {names.domain_name(cluster, guest) for guest in kept})
        for error in failures.values():
            raise error
        if unreachable and len(owned) < len(guests):
            raise Unreachable("; ".join(unreachable))

    def _forget_stopped(self, stopped: Collection[str], kept: Container[str]) -> None:
        for name in stopped:
            self._remove_console(name)
        for name in stopped:
            if name not in kept:
                self._files.ensure_none(name)

    def _has_systemd(self, domain: str) -> bool:
        root = self._roots.find(domain)
        return root is not None and RootedFiles(root).has_systemd()

    def ensure_no_files(self, cluster: str) -> None:
        """Remove the disks and logs of those guests of a cluster that have no domain.

        If a hypervisor does not answer, remove no files. A later call of `remove_orphaned_files` removes the files.
        """
        domains, unreachable = self._hypervisors.list_domains()
        if not unreachable:
            self._files.ensure_none_of_cluster(cluster, {domain.name for _, domain in domains})

    def remove_orphaned_files(self, wanted: HostWanted) -> bool:
        """Remove the disks and logs of guests that are not in ``wanted`` and have no domain.

        Return False if files remain because a foreign domain has the name of their guest. If a hypervisor does not
        answer, remove no files and return False.
        """
        kept = {names.domain_name(segment.id, guest.name) for segment in wanted.segments for guest in segment.guests}
        if self._files.list_domains() <= kept:
            return True
        domains, unreachable = self._hypervisors.list_domains()
        if unreachable:
            return False
        self._files.ensure_none_but(kept | {domain.name for _, domain in domains})
        foreign = {domain.name for _, domain in domains if domain.owner is None}
        return not (self._files.list_domains() - kept) & foreign

    def _add_consoles(self, domains: Iterable[tuple[HypervisorApi, GuestDomain]]) -> None:
        if self._consoles is None:
            return
        for hypervisor, domain in domains:
            if not (domain.owner and domain.running) or self._consoles.knows(domain.name):
                continue
            with suppress(Unreachable, Refused):  # the next call of `read` tries again
                terminal = hypervisor.find_console(domain.name)
                is_logged = self._hypervisors.needs_console_log(hypervisor)
                log_file = self._files.console_log(domain.name) if is_logged else None
                if terminal is not None:
                    self._consoles.add(domain.name, terminal, log_file)

    def _remove_console(self, domain: str) -> None:
        if self._consoles is not None:
            self._consoles.remove(domain)


def _check_ownership(domain: GuestDomain, segment: Segment) -> None:
    if domain.owner is None or domain.owner.cluster != segment.id:
        raise Unsafe(
            f"domain {domain.name} exists and was not created by virtcloud; left unchanged; rename or remove the domain"
        )
