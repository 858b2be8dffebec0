"""The machine, put together from its real parts. Importing this takes long: it needs pyroute2 and libvirt."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from virtcloud.agent.admission import Admission
from virtcloud.agent.guests import Guests, GuestSettings
from virtcloud.agent.hypervisor import Libvirt
from virtcloud.agent.jobport_way import Ways
from virtcloud.agent.kernel import Netlink
from virtcloud.agent.links import Links
from virtcloud.agent.local.ear import Ear
from virtcloud.agent.machine import Machine
from virtcloud.agent.settings import AgentSettings
from virtcloud.agent.uplinks import Uplinks


@contextmanager
def machine(
    settings: AgentSettings, pause: Callable[[float], None], progress: Callable[[], object]
) -> Iterator[Machine]:
    """Open this machine's kernel and hypervisors, and close them again.

    ``pause`` is as in :class:`Guests`; ``progress`` is called after each call to a hypervisor.
    """
    netlink = Netlink()
    hypervisors = {kind: Libvirt(uri, progress=progress) for kind, uri in settings.hypervisors.items()}
    try:
        accepts = settings.bridged_frames_filtered == "accept"
        links = Links(netlink, Uplinks(settings.state / "uplinks"), accepts_filters=accepts)
        yield Machine(links, Guests(hypervisors, _guest_settings(settings), pause))
    finally:
        netlink.close()
        for hypervisor in hypervisors.values():
            hypervisor.close()


def ways(settings: AgentSettings) -> Ways:
    """Make what opens jobs' ways to their guests; each call opens the kernel for itself, whatever thread it is in."""
    return Ways(lambda: closing(Netlink()), settings.jobs, Ear)


def _guest_settings(settings: AgentSettings) -> GuestSettings:
    keys = settings.guests
    return GuestSettings(
        settings.images,
        settings.state / "guests",
        os.uname().machine,
        keys.accelerator,
        keys.confined,
        keys.stop_grace,
        admission=Admission(keys.admits, keys.users_images),
    )
