"""A kernel, a hypervisor, an SBF and a host in memory, for the agent's tests."""

from fake_machine.host import FakeHypervisor, FakeKernel, FakeMounts, FakeUplinkRecords
from fake_machine.reconciler import FakeElementApi, FakeMachine

__all__ = ["FakeElementApi", "FakeHypervisor", "FakeKernel", "FakeMachine", "FakeMounts", "FakeUplinkRecords"]
