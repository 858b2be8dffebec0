"""The machine as the loop sees it: read, and apply one step."""

from virtcloud.agent import log
from virtcloud.agent.carried import Carried
from virtcloud.agent.difference import BuildSegment, RemoveSegment, StartGuest, Step, StopGuests
from virtcloud.agent.guests import Guests
from virtcloud.agent.links import Links
from virtcloud.model.errors import Refused


class Machine:
    """The segments and the guests of this machine."""

    def __init__(self, links: Links, guests: Guests) -> None:
        """Put both together."""
        self._links = links
        self._guests = guests
        self._swept = False

    def read(self) -> Carried:
        """Read what the machine carries, from the kernel and the hypervisors, within what is ours.

        A hypervisor that does not answer raises nothing: the network converges without it.
        """
        self._sweep()
        guests, silent = self._guests.read()
        return Carried(self._links.segments(), guests, silent)

    def _sweep(self) -> None:
        """Remove once what a killed agent left of guests; a failure is logged, and repeated at the next reading."""
        try:
            self._swept = self._swept or self._guests.sweep()
        except Refused as error:
            log.warning("not_swept", error=error)

    def apply(self, step: Step) -> None:
        """Do one step; it may be repeated. Raises what its part raises."""
        match step:
            case StopGuests(cluster, guests):
                self._guests.ensure_no_guests(cluster, guests)
            case RemoveSegment(cluster, vlan):
                self._links.ensure_no_segment(cluster, vlan)
                self._guests.ensure_no_traces(cluster)
            case BuildSegment(segment):
                self._links.ensure_segment(segment)
            case StartGuest(segment, guest):
                self._guests.ensure_guest(segment, guest)
