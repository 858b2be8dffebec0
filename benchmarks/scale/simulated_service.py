"""The simulated service: the real SBF with switches in memory, in a process of its own.

``python -m benchmarks.scale.simulated_service DATABASE LISTEN FOLDER`` writes an operator's token to FOLDER and starts
the service. The program reads commands from standard input, one per line: ``tokens`` (create a token for each host),
``dark SITE`` and ``light SITE`` (disconnect and connect the switches of a site). The service ends at the end of
standard input. The program then writes a report to ``FOLDER/end.json``: the VLANs that are still on switches, and the
service's processor time and highest memory use.
"""

import json
import os
import resource
import secrets
import signal
import sys
import threading
import time
from pathlib import Path

from sqlalchemy import select
from support.sbf_fakes.switches import FakeSwitches

from sbf_service import server
from sbf_service.bootstrap import SbfService, build_service
from sbf_service.settings import ServiceSettings
from sbf_service.store.tables.tables import ElementRow
from sbf_service.store.users.tokens import create_token
from virtcloud.model.access import Role, TokenRequest
from virtcloud.model.values import UserName

RATE = "900000/minute"
TIMING = {"agent_silence": 60, "retry_most": 2}


def main(database: str, listen: str, folder: Path) -> None:
    """Serve until standard input ends, then write the end state."""
    settings = {"database": database, "listen": listen, "replica": "sim", "timing": TIMING, "workers": 16}
    switches = FakeSwitches()
    limits = {"rates": {"clusters": RATE}}
    service = build_service(ServiceSettings.model_validate(settings | limits), switches.platform_of)
    service.prepare()
    write_tokens(service, folder / "operator.json", {"operator": Role.OPERATOR})
    sockets = server.open_sockets(service)
    threading.Thread(target=obey, args=(service, switches, folder), daemon=True).start()
    server.run_server(service, sockets)
    report = {
        "configured": {name: switch.carried() for name, switch in switches.found.items() if switch.carried()},
        "processor_s": time.process_time(),
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    write_whole(folder / "end.json", report)


def write_tokens(service: SbfService, file: Path, roles: dict[str, Role]) -> None:
    """Create a token for each name, and write the tokens by name to a file."""
    with service.store.change(who="simulation") as unit:
        requests = [TokenRequest(name=UserName(name), role=role) for name, role in roles.items()]
        tokens = {
            str(request.name): str(create_token(unit, request, secrets.token_bytes).token) for request in requests
        }
    write_whole(file, tokens)


def obey(service: SbfService, switches: FakeSwitches, folder: Path) -> None:
    """Execute the commands of standard input. End the service when standard input ends."""
    for line in sys.stdin:
        command, _, site = line.strip().partition(" ")
        if command == "tokens":
            with service.store.read() as unit:
                hosts = unit.session.scalars(select(ElementRow.name).where(ElementRow.kind == "host")).all()
            write_tokens(service, folder / "agents.json", dict.fromkeys(hosts, Role.AGENT))
        else:
            for name in (f"{site}-sw1", f"{site}-sw2"):
                switches[name].cut_off = command == "dark"
    os.kill(os.getpid(), signal.SIGTERM)


def write_whole(file: Path, content: object) -> None:
    """Write a JSON file atomically."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps(content), "utf-8")
    new.replace(file)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
