"""A kernel, a hypervisor, a service and a machine in memory, for the agent's tests."""

from fake_machine.hypervisor import FakeHypervisor
from fake_machine.kernel import FakeKernel
from fake_machine.loop import FakeMachine, FakeService
from fake_machine.uplinks import FakeUplinks
from fake_machine.volumes import FakeVolumes

__all__ = ["FakeHypervisor", "FakeKernel", "FakeMachine", "FakeService", "FakeUplinks", "FakeVolumes"]
