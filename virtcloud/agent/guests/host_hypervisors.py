"""All hypervisors of this host: the list of all domains, and the choice of the hypervisor for an image."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from virtcloud.agent import log
from virtcloud.agent.guests.domains import GuestDomain, HypervisorApi
from virtcloud.agent.guests.images import GuestImage
from virtcloud.agent.network import names
from virtcloud.model.element import Hypervisor as Kind
from virtcloud.model.errors import Refused, Unreachable
from virtcloud.model.wanted import GuestWanted, Segment

POLL_S = 0.1
"""Seconds between two checks for ended guests."""


class HostHypervisors:
    """The hypervisors of this host by kind."""

    def __init__(self, hypervisors: Mapping[Kind, HypervisorApi], pause: Callable[[float], None]) -> None:
        """Store the hypervisors. ``pause`` waits for the given seconds, or raises StopRequested."""
        self._hypervisors = hypervisors
        self._pause = pause

    def runs_containers(self, hypervisor: HypervisorApi) -> bool:
        """Return whether a hypervisor's guests are containers."""
        return hypervisor is self._hypervisors.get(Kind.LXC)

    def needs_console_log(self, hypervisor: HypervisorApi) -> bool:
        """Return whether the agent must write the console logs of a hypervisor's guests: true for LXC and Xen."""
        return self.runs_containers(hypervisor) or hypervisor.is_xen()

    def wait_for_end(self, leaving: list[tuple[HypervisorApi, str]], grace_s: float) -> None:
        """Wait until the domains in ``leaving`` have ended, or for ``grace_s`` seconds.

        Do not wait for a domain whose hypervisor does not answer.
        """
        waited = 0.0
        while waited < grace_s and any(_is_running(*guest) for guest in leaving):
            self._pause(POLL_S)
            waited += POLL_S

    def destroy(self, leaving: list[tuple[HypervisorApi, str]]) -> dict[str, Refused | Unreachable]:
        """Stop the domains immediately. Return the errors of domains that cannot be destroyed, by name."""
        failures: dict[str, Refused | Unreachable] = {}
        for hypervisor, name in leaving:
            try:
                hypervisor.destroy(name)
            except (Refused, Unreachable) as error:
                failures[name] = error
        return failures

    def list_domains(self) -> tuple[list[tuple[HypervisorApi, GuestDomain]], list[str]]:
        """Return (hypervisor, domain) for each domain, and an error for each hypervisor that does not list its domains.

        If libvirt cannot read one of a hypervisor's domains, this hypervisor lists no domains.
        """
        domains: list[tuple[HypervisorApi, GuestDomain]] = []
        unreachable: list[str] = []
        for hypervisor in self._hypervisors.values():
            try:
                domains += [(hypervisor, _disown_copy(domain)) for domain in hypervisor.list_domains()]
            except (Refused, Unreachable) as error:
                unreachable.append(str(error))
        return domains, unreachable

    def find_domains(self, name: str, target: HypervisorApi) -> tuple[list[GuestDomain], bool]:
        """Return the domains with this name, and whether all hypervisors answered.

        If ``target`` does not answer or refuses the search, raise its error. Skip any other hypervisor that fails. The
        guest may run on a skipped hypervisor, but cannot run twice: the kernel refuses a second interface with the name
        of the guest's bridge port.
        """
        domains: list[GuestDomain] = []
        is_complete = True
        for hypervisor in self._hypervisors.values():
            try:
                domain = hypervisor.find_domain(name)
            except (Refused, Unreachable):
                if hypervisor is target:
                    raise
                is_complete = False
                continue
            if domain:
                domains.append(domain)
        return domains, is_complete

    def select(self, image: GuestImage, guest: GuestWanted) -> HypervisorApi:
        """Return the hypervisor of the kind that an image needs. Raise Refused if this host has none."""
        kind = Kind(image.kind)
        if kind not in self._hypervisors:
            raise Refused(
                f"guest {guest.name}: image {guest.image} needs a hypervisor of kind {kind}, but this host's agent has "
                f'none; add {kind} = "{kind}:///system" under [hypervisors] in its settings'
            )
        return self._hypervisors[kind]


def set_mtu(hypervisor: HypervisorApi, domain: str, segment: Segment) -> None:
    """Set the MTU of a running guest to the cluster's MTU, if the cluster has an MTU.

    If the MTU cannot be set, only log the error: a container can end at once, and root in a container can rename or
    delete its interface. Raise Unreachable if the hypervisor does not answer.
    """
    if segment.mtu is None:
        return
    try:
        hypervisor.set_mtu(domain, segment.mtu)
    except Refused as error:
        log.warning("mtu_not_set", domain=domain, error=error)


def _disown_copy(domain: GuestDomain) -> GuestDomain:
    """Return the domain, without an owner if the domain is a copy of a guest's domain under another name.

    An administrator may copy a domain with virt-clone, which copies the metadata too.
    """
    owner = domain.owner
    if owner is None or domain.name == names.domain_name(owner.cluster, owner.guest):
        return domain
    return replace(domain, owner=None)


def _is_running(hypervisor: HypervisorApi, name: str) -> bool:
    try:
        domain = hypervisor.find_domain(name)
    except Unreachable:
        return False
    return domain is not None and domain.running
