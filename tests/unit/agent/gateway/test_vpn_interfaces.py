"""Tests of the taps of OpenVPN servers on the real kernel, in a separate network namespace."""

from contextlib import closing
from typing import Any

import pytest
from support.kernel.network_namespaces import Run

from virtcloud.agent.gateway.vpn_interfaces import VpnInterfaces
from virtcloud.agent.network.kernel import NetlinkKernel
from virtcloud.model.errors import Refused


class InterruptedKernel(NetlinkKernel):
    """A kernel that refuses the first change.

    The new tap then has its temporary name and no alias, as after a crash of the agent.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_interrupted = False

    def change(self, index: int, **values: Any) -> None:
        if not self.is_interrupted:
            self.is_interrupted = True
            raise Refused("too many open files")
        super().change(index, **values)


def test_a_tap_without_alias_after_a_crash_is_replaced(in_namespace: Run) -> None:
    def work() -> object:
        with closing(InterruptedKernel()) as kernel:
            with pytest.raises(Refused):
                VpnInterfaces(kernel).ensure_tap("vpn-udp")
            former = {interface.name for interface in kernel.list_interfaces()}
            VpnInterfaces(kernel).ensure_tap("vpn-udp")
            taps = [(each.name, each.alias, each.up) for each in kernel.list_interfaces() if each.name != "lo"]
            return former - {"lo"}, taps

    assert in_namespace(work) == ({"vcnew-vpn-udp"}, [("vpn-udp", "virtcloud-vpn", True)])
