import json
import shlex
from dataclasses import dataclass, field

from virtcloud.model.errors import Unreachable


@dataclass
class LinuxSwitch:
    """A switch. ``ports`` maps each port of its bridge to a mapping from VLAN IDs to flags."""

    ports: dict[str, dict[int, list[str]]]
    cut_off: bool = False
    says: str | None = None
    refuses: str | None = None
    down: set[str] = field(default_factory=set)
    filtering: int = 1

    def show(self) -> str:
        """Return the output of ``bridge -compressvlans -json vlan show`` (iproute2 6.1): VLAN ranges with flags."""
        return json.dumps([{"ifname": port, "vlans": _entries(vlans)} for port, vlans in self.ports.items() if vlans])

    def links(self) -> str:
        """Return the fields that the driver reads from ``ip -details -json link show``."""
        settings = {"info_kind": "bridge", "info_data": {"vlan_filtering": self.filtering}}
        bridge = {"ifname": "br0", "flags": ["BROADCAST", "UP"], "linkinfo": settings}
        ports = [
            {"ifname": port, "flags": [] if port in self.down else ["BROADCAST", "UP"], "master": "br0"}
            for port in self.ports
        ]
        return json.dumps([bridge, *ports])

    def batch(self, lines: list[str]) -> tuple[int, str]:
        """Run the lines of ``bridge -force -batch -``. Return the exit code and the output."""
        faults = [f"{fault}\nCommand failed -:{n}\n" for n, line in enumerate(lines, 1) if (fault := self._do(line))]
        return (1 if faults else 0), "".join(faults)

    def _do(self, line: str) -> str | None:
        _vlan, verb, _dev, port, _vid, vlans, *flags = line.split()
        names = {"pvid": "PVID", "untagged": "Egress Untagged"}
        if self.refuses is not None:
            return self.refuses
        if port not in self.ports:
            return f'Cannot find bridge device "{port}"'
        first, _, last = vlans.partition("-")
        for vlan in range(int(first), int(last or first) + 1):
            if verb == "add":
                self.ports[port][vlan] = [names[flag] for flag in flags]
            else:
                self.ports[port].pop(vlan, None)
        return None


@dataclass
class LinuxLine:
    """The command line of the switch. Each output begins with a part of the command, as if a terminal echoed it."""

    switch: LinuxSwitch
    prompt: str = r"^# "

    def exchange(self, command: str, until: str, times: int = 1, patience: float = 1) -> str:
        if self.switch.cut_off:
            raise Unreachable("switch sw1 (192.0.2.1) does not answer: cut off; SBF tries again")
        assert len(command) < 4096, "a terminal reads at most 4095 characters in a line"
        code, output = self._run(command)
        return f"{command[30:]}\nbegin-of-answer\n{output}end-of-answer:{code}"

    def close(self) -> None:
        """End the session."""

    def _run(self, command: str) -> tuple[int, str]:
        if self.switch.says is not None:
            return 0, self.switch.says
        if "vlan show" in command:
            return 0, f"{self.switch.show()}\n{self.switch.links()}\n"
        words = shlex.split(command[command.index("printf") : command.index(" | bridge -force -batch -")])
        assert words[:2] == ["printf", "%s\\n"]
        return self.switch.batch(words[2:])


def _entries(vlans: dict[int, list[str]]) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for number, flags in sorted(vlans.items()):
        last = found[-1] if found else {}
        if last and not flags and not last.get("flags") and last.get("vlanEnd", last["vlan"]) == number - 1:
            last |= {"vlanEnd": number, "flags": []}
        else:
            found.append({"vlan": number} | ({"flags": flags} if flags else {}))
    return found
