"""A Linux edge on the real kernel of a lab, for the tests of the edge driver."""

import json
from dataclasses import dataclass

from sbf_service.drivers.contract import Backbone
from sbf_service.drivers.edge.linux_edge import LinuxEdge
from support.edge_claims import EDGE, OVERLAY, STAGS
from virtcloud.lab import Lab

PORTS = ("ac1", "ac2", "other", "core")


@dataclass
class NamespaceLine:
    """A command line in the namespace ``bench`` of a node. No terminal is involved, so commands are not echoed."""

    lab: Lab
    node: str
    prompt: str = r"^# "

    def exchange(self, command: str, until: str, times: int = 1, patience: float = 1) -> str:
        ended = self.lab.run(self.node, ["ip", "netns", "exec", "bench", "sh", "-c", command])
        return ended.stdout + ended.stderr

    def close(self) -> None:
        """Do nothing, because there is no session."""


@dataclass
class OnKernel:
    """A test bench whose edge is a network namespace on a node of the lab."""

    lab: Lab
    node: str

    def __post_init__(self) -> None:
        self.driver = LinuxEdge(EDGE, Backbone((OVERLAY, STAGS), {}), NamespaceLine(self.lab, self.node))

    def make(self) -> None:
        self.lab.run(self.node, ["ip", "netns", "add", "bench"], check=True)
        self.do("ip", "link add br0 type bridge vlan_filtering 1 vlan_default_pvid 0", "link set br0 up")
        self.do("ip", *(f"link add {port} type veth peer name x-{port}" for port in PORTS))
        self.do("ip", *(f"link set {port} master br0 up" for port in PORTS[:-1]), "link set core up")

    def empty(self) -> None:
        self.do("ip", *(f"link del {device}" for device in self.devices()))
        self.do("bridge", *(f"vlan del dev {port} vid 1-4094" for port in self.carries()))

    def remove(self) -> None:
        self.lab.run(self.node, ["ip", "netns", "del", "bench"], check=True)

    def do(self, program: str, *lines: str) -> None:
        if lines:
            self.lab.run(self.node, [program, "-n", "bench", "-batch", "-"], stdin="\n".join(lines), check=True)

    def carries(self) -> dict[str, dict[int, str]]:
        output = self.lab.run(self.node, ["bridge", "-n", "bench", "-json", "vlan", "show"], check=True).stdout
        return {
            port["ifname"]: {entry["vlan"]: ", ".join(entry.get("flags", [])) for entry in port["vlans"]}
            for port in json.loads(output)
            if port["vlans"]
        }

    def devices(self) -> set[str]:
        output = self.lab.run(self.node, ["ip", "-n", "bench", "-json", "link", "show"], check=True).stdout
        permanent = {"lo", "br0", *PORTS, *(f"x-{port}" for port in PORTS)}
        return {link["ifname"] for link in json.loads(output)} - permanent
