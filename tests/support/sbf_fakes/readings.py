from sbf_service.drivers.contract import EdgeScope, SwitchScope
from sbf_service.reconcile.device_task import DeviceReading
from sbf_service.reconcile.task import EdgeTask, SwitchTask
from virtcloud.model.edge import EdgeObserved, EdgeWanted
from virtcloud.model.element import Edge, Switch
from virtcloud.model.switch_state import SwitchObserved, SwitchWanted
from virtcloud.model.values import Name
from virtcloud.model.vlans import VlanSet


def read_switch(name: str, wanted: SwitchWanted, observed: SwitchObserved, *, behind: bool = False) -> DeviceReading:
    """Return a reading of a switch. If ``behind`` is true, the switch has not confirmed its latest revision."""
    switch = Switch.model_validate({"name": name, "platform": "fake", "ports": ["p1"]})
    return SwitchTask(
        device=switch,
        site=Name("brno"),
        fence=1,
        revision=2,
        confirmed=1 if behind else 2,
        wanted=wanted,
        kept=wanted,
        scope=SwitchScope(switch.ports, VlanSet()),
        backbone=None,
        users={},
    ).interpret(observed)


def read_edge(name: str, wanted: EdgeWanted, observed: EdgeObserved, *, behind: bool = False) -> DeviceReading:
    """Return a reading of an edge. If ``behind`` is true, the edge has not confirmed its latest revision."""
    edge = Edge.model_validate({"name": name, "platform": "fake", "ports": ["ac"], "core_port": "core"})
    return EdgeTask(
        device=edge,
        site=Name("brno"),
        fence=1,
        revision=2,
        confirmed=1 if behind else 2,
        wanted=wanted,
        kept=wanted,
        scope=EdgeScope(edge.ports, VlanSet(), ()),
        backbone=None,
        users={},
    ).interpret(observed)
