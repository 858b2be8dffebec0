"""What is said of switches and provider edges alike: SBF configures both itself, by the one mechanism."""

from virtcloud.model.edge import EdgeCarried, EdgeDifference
from virtcloud.model.element import ElementKind
from virtcloud.model.wanted import SwitchCarried, SwitchDifference

DEVICES = frozenset({ElementKind.SWITCH, ElementKind.EDGE})
"""The kinds of elements that SBF configures itself; the others have agents."""

DeviceCarried = SwitchCarried | EdgeCarried
DeviceDifference = SwitchDifference | EdgeDifference
