"""A real Open vSwitch for tests, with dummy ports. The daemons store all files in one folder.

The machine's network is not changed. The daemons need no root rights, interface or kernel module. ``ofproto/trace``
reports to which ports the switch would forward a frame.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")
PROGRAMS = ("ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovs-appctl", "ovsdb-client")
PORTS = ("p1", "p2", "p3")


def missing() -> list[str]:
    return [name for name in PROGRAMS if shutil.which(name, path=search_path()) is None]


def search_path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


@dataclass
class Daemons:
    """One switch, br0, with the ports p1, p2 and p3. By default, each port carries every VLAN."""

    folder: Path
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": search_path(), "OVS_RUNDIR": str(self.folder), "OVS_LOGDIR": str(self.folder)}

    def start(self) -> None:
        self.run("ovsdb-tool", "create", f"{self.folder}/conf.db", str(SCHEMA))
        database = f"{self.folder}/db.sock"
        self._start(
            "ovsdb-server", f"{self.folder}/conf.db", f"--remote=punix:{database}", f"--unixctl={self.folder}/s"
        )
        self.run("ovs-vsctl", "--no-wait", "--retry", "--timeout=20", "init")
        ports = [argument for port in PORTS for argument in _with_port(port)]
        self.run("ovs-vsctl", "--no-wait", "add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy", *ports)
        self.start_switch()

    def start_switch(self) -> None:
        options = "--enable-dummy", "--disable-system", f"--unixctl={self.folder}/v"
        self._start("ovs-vswitchd", f"unix:{self.folder}/db.sock", *options)
        # This command returns only after ovs-vswitchd has applied the new external_ids: then ovs-vswitchd is ready.
        self.alter("br0", f"external_ids:started={self._running['ovs-vswitchd'].pid}")

    def kill_switch(self) -> None:
        """Stop ovs-vswitchd only. The database keeps running without a switch."""
        self._end("ovs-vswitchd")

    def stop(self) -> None:
        for name in ("ovs-vswitchd", "ovsdb-server"):
            self._end(name)

    def reset(self) -> None:
        defaults = [
            argument for port in PORTS for argument in ("--", *_set(port, "vlan_mode=[]", "tag=[]", "trunks=[]"))
        ]
        self.run("ovs-vsctl", "--timeout=20", *defaults)

    def alter(self, port: str, *values: str) -> None:
        self.run("ovs-vsctl", "--timeout=20", *_set(port, *values))

    def get(self, port: str, column: str) -> object:
        return json.loads(self.run("ovs-vsctl", "get", "port", port, column))

    def trunks(self, port: str) -> set[int]:
        trunks: list[int] = json.loads(self.run("ovs-vsctl", "get", "port", port, "trunks"))
        return set(trunks)

    def reaches(self, port: str, tag: int | None = None) -> set[str]:
        """Return the ports through which the switch would send a broadcast frame received on ``port``."""
        vlan = "" if tag is None else f",dl_vlan={tag}"
        flow = f"in_port={port},dl_src=02:00:00:00:00:01,dl_dst=ff:ff:ff:ff:ff:ff{vlan}"
        output = self.run("ovs-appctl", "-t", f"{self.folder}/v", "ofproto/trace", "br0", flow)
        (actions,) = re.findall(r"^Datapath actions: (.*)$", output, re.MULTILINE)
        ports = self.run("ovs-appctl", "-t", f"{self.folder}/v", "dpctl/show", "dummy@ovs-dummy")
        numbers = dict(re.findall(r"^  port (\d+): (p\d)\b", ports, re.MULTILINE))
        return {numbers[number] for number in re.findall(r"\b\d+\b(?!=)", actions) if number in numbers}

    def run(self, *command: str) -> str:
        ended = subprocess.run(  # noqa: S603 - Open vSwitch's programs
            command, env=self.environment, capture_output=True, text=True, check=False, timeout=30
        )
        assert ended.returncode == 0, (command, ended.stderr)
        return ended.stdout

    def _start(self, *command: str) -> None:
        log = (self.folder / f"{command[0]}.log").open("ab")
        with log:
            self._running[command[0]] = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)  # noqa: S603

    def _end(self, name: str) -> None:
        running = self._running.pop(name, None)
        if running is not None:
            running.kill()
            running.wait()


@contextmanager
def daemons(folder: Path) -> Iterator[Daemons]:
    switch = Daemons(folder)
    try:
        switch.start()
        yield switch
    finally:
        switch.stop()


def _with_port(port: str) -> tuple[str, ...]:
    return "--", "add-port", "br0", port, "--", "set", "interface", port, "type=dummy"


def _set(port: str, *values: str) -> tuple[str, ...]:
    return "set", "port", port, *values
