"""An agent of the installed version of virtcloud, with that version's client and reconciler. The host is simulated.

Arguments: the address of SBF, the name of the element.
"""

import sys
from typing import NoReturn

from virtcloud.agent.difference import digest
from virtcloud.client import SbfClient

try:
    from virtcloud.agent.observed_host import ObservedGuest, ObservedHost, ObservedSegment
    from virtcloud.agent.reconciler import HostReconciler, ReconcileTiming
    from virtcloud.agent.steps import BuildSegment, RemoveSegment, StartGuest, Step, StopGuests
    from virtcloud.agent.supervision import StopSignal
except ImportError:  # version 0.1
    from virtcloud.agent.carried import Carried as ObservedHost
    from virtcloud.agent.carried import CarriedGuest as ObservedGuest
    from virtcloud.agent.carried import CarriedSegment as ObservedSegment
    from virtcloud.agent.loop import Converger as HostReconciler
    from virtcloud.agent.loop import Timing as ReconcileTiming
    from virtcloud.agent.stopping import Stop as StopSignal

    from virtcloud.agent.difference import BuildSegment, RemoveSegment, StartGuest, Step, StopGuests


class Machine:
    """A machine in memory that applies each step immediately."""

    def __init__(self) -> None:
        self.segments: dict[tuple[str, int], ObservedSegment] = {}
        self.guests: dict[tuple[str, str], ObservedGuest] = {}

    def remove_orphaned_files(self, _wanted: object) -> None:
        pass

    def find_end_cause(self, *_: object) -> NoReturn:
        raise AssertionError("expected no question about the end of a guest, because no guest of this machine ends")

    def read(self) -> ObservedHost:
        return ObservedHost(tuple(self.segments.values()), tuple(self.guests.values()))

    def apply(self, step: Step) -> None:
        match step:
            case BuildSegment(one):
                self.segments[one.id, one.vlan] = ObservedSegment(one.id, one.vlan, one.port, (), one.untagged)
            case RemoveSegment(cluster, vlan):
                del self.segments[cluster, vlan]
            case StartGuest(one, guest):
                self.guests[one.id, guest.name] = ObservedGuest(one.id, guest.name, digest(one, guest))
            case StopGuests(cluster, guests):
                for name in guests:
                    del self.guests[cluster, name]


HostReconciler(
    sys.argv[2], SbfClient(sys.argv[1]), Machine(), StopSignal(), ReconcileTiming(check_s=5, retry_first_s=0.1)
).run()
