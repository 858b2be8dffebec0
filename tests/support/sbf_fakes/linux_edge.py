import json
import shlex
from dataclasses import dataclass, field
from typing import Any

from virtcloud.model.errors import Unreachable

KINDS = {"vxlan": ("id", "local", "dstport"), "vlan": ("proto", "id"), "dummy": ()}


@dataclass
class Interface:
    """A network interface of the edge."""

    kind: str
    data: dict[str, Any] = field(default_factory=dict)
    link: str | None = None
    master: str | None = None
    up: bool = False
    learning: bool = True

    def show(self, name: str) -> dict[str, Any]:
        """Return the fields that the driver reads from ``ip -details -json link show`` of iproute2 6.1."""
        shown: dict[str, Any] = {
            "ifname": name,
            "flags": ["BROADCAST", "UP"] if self.up else ["BROADCAST"],
            "mtu": 1500,
        }
        shown |= {"link": self.link} if self.link or self.kind == "sit" else {}
        shown |= {"master": self.master} if self.master else {}
        info = {"info_kind": self.kind} | ({"info_data": self.data} if self.data else {})
        slave = {"info_slave_kind": "bridge", "info_slave_data": {"learning": self.learning}} if self.master else {}
        return shown | {"linkinfo": info | slave}


@dataclass
class LinuxPe:
    """The edge: ports ``ac1``, ``ac2`` and ``other`` on a bridge ``br0``, and a port ``core`` on no bridge."""

    cut_off: bool = False
    says: str | None = None
    refuses: str | None = None

    def __post_init__(self) -> None:
        bridge = {"vlan_filtering": 1, "vlan_default_pvid": 0, "vlan_protocol": "802.1Q"}
        self.links = {"lo": Interface("", up=True), "br0": Interface("bridge", bridge, up=True)}
        self.links |= {name: Interface("veth", master="br0", up=True) for name in ("ac1", "ac2", "other")}
        self.links["core"] = Interface("veth", up=True)
        self.vlans: dict[str, dict[int, list[str]]] = {}
        self.instants: list[dict[int, set[str]]] = []

    def joined(self) -> dict[int, set[str]]:
        ports: dict[int, set[str]] = {}
        for port, vlans in self.vlans.items():
            for vlan in vlans if self.links[port].up else ():
                ports.setdefault(vlan, set()).add(port)
        return ports

    def run(self, command: str) -> tuple[int, str]:
        if self.says is not None:
            return 0, self.says
        if command.startswith("ip -details -json link show"):
            return 0, json.dumps([link.show(name) for name, link in self.links.items()])
        if command.startswith("bridge -compressvlans -json vlan show"):
            return 0, json.dumps(
                [{"ifname": port, "vlans": _entries(found)} for port, found in self.vlans.items() if found]
            )
        lines, _, program = command.partition(" | ")
        faults = []
        for number, line in enumerate(shlex.split(lines)[2:], 1):
            fault = self.refuses or self.do(program.split()[0], line)
            faults += [f"{fault}\nCommand failed -:{number}\n"] if fault else []
            self.instants.append(self.joined())
        return (1 if faults else 0), "".join(faults)

    def do(self, program: str, line: str) -> str | None:
        words = line.split()
        if program == "bridge":
            return self._vlan(words[1], words[3], int(words[5]), words[6:])
        if words[1] == "add":
            return self._add(words[2:])
        if words[2] not in self.links:
            return f'Cannot find device "{words[2]}"'
        if words[1] == "del":
            self.links.pop(words[2])
            self.vlans.pop(words[2], None)
        elif words[3] == "master":
            self.links[words[2]].master = words[4]
            self.links[words[2]].up |= words[5:] == ["up"]
        elif words[3:] == ["type", "bridge_slave", "learning", "off"]:
            self.links[words[2]].learning = False
        else:
            assert words[3:] in (["up"], ["down"])
            self.links[words[2]].up = words[3] == "up"
        return None

    def _add(self, words: list[str]) -> str | None:
        link = words[1] if words[0] == "link" else None
        words = words[3:] if words[2:3] == ["name"] else words
        name, kind, rest = words[0], words[2], words[3:]
        if name in self.links:
            return "RTNETLINK answers: File exists"
        options = dict(zip(rest[::2], rest[1::2], strict=False))
        if kind == "vxlan":
            local = "local6" if ":" in options["local"] else "local"
            data = {"id": int(options["id"]), local: options["local"], "port": int(options["dstport"])}
            self.links[name] = Interface(kind, data | {"learning": "nolearning" not in rest})
        elif kind == "vlan":
            tag = {"protocol": options.get("proto", "802.1Q"), "id": int(options["id"])}
            self.links[name] = Interface(kind, tag, link=link)
        else:
            self.links[name] = Interface(kind)
        return None

    def _vlan(self, verb: str, port: str, number: int, flags: list[str]) -> str | None:
        if port not in self.links:
            return f'Cannot find bridge device "{port}"'
        found = self.vlans.setdefault(port, {})
        if verb == "add":
            found[number] = [{"pvid": "PVID", "untagged": "Egress Untagged"}[flag] for flag in flags]
        else:
            found.pop(number, None)
        return None


@dataclass
class PeLine:
    """The command line of the edge. Like a terminal, it also prints a part of the echoed command."""

    machine: LinuxPe
    prompt: str = r"^# "

    def exchange(self, command: str, until: str, times: int = 1, patience: float = 1) -> str:
        if self.machine.cut_off:
            raise Unreachable("edge pe1 (192.0.2.1) does not answer: cut off; SBF tries again")
        assert len(command) < 4096, "a terminal reads at most 4095 characters in a line"
        inner = command.split("; ", 2)[2].rpartition("; echo")[0].removesuffix(" 2>&1")
        code, output = self.machine.run(inner)
        return f"{command[30:]}\nbegin-of-answer\n{output}\nend-of-answer:{code}"

    def close(self) -> None:
        """End the session."""


def _entries(vlans: dict[int, list[str]]) -> list[dict[str, object]]:
    return [{"vlan": number} | ({"flags": flags} if flags else {}) for number, flags in sorted(vlans.items())]
