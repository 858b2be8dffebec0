"""A host's agent of whichever version runs this: its own client and converger, on a machine in memory.

Arguments: the address of SBF, the element's name.
"""

import sys

from virtcloud.agent.carried import Carried, CarriedGuest, CarriedSegment
from virtcloud.agent.difference import BuildSegment, RemoveSegment, StartGuest, Step, StopGuests, digest
from virtcloud.agent.loop import Converger, Timing
from virtcloud.agent.stopping import Stop
from virtcloud.client import SbfClient


class Machine:
    """Carries what it was told to."""

    def __init__(self) -> None:
        self.segments: dict[tuple[str, int], CarriedSegment] = {}
        self.guests: dict[tuple[str, str], CarriedGuest] = {}

    def read(self) -> Carried:
        return Carried(tuple(self.segments.values()), tuple(self.guests.values()))

    def apply(self, step: Step) -> None:
        match step:
            case BuildSegment(one):
                self.segments[one.id, one.vlan] = CarriedSegment(one.id, one.vlan, one.port, (), one.untagged)
            case RemoveSegment(cluster, vlan):
                del self.segments[cluster, vlan]
            case StartGuest(one, guest):
                self.guests[one.id, guest.name] = CarriedGuest(one.id, guest.name, digest(one, guest))
            case StopGuests(cluster, guests):
                for name in guests:
                    del self.guests[cluster, name]


Converger(sys.argv[2], SbfClient(sys.argv[1]), Machine(), Stop(), Timing(check_s=5, retry_first_s=0.1)).run()
