"""SBF with simulated switches, without devices and without root: the program that ``virtcloud up`` starts.

``python -m sbf_service.simulation FOLDER`` stores the SQLite database, an operator's token and the switches in FOLDER.
The program ends when its standard input ends. ``sbf serve`` refuses simulated switches.
"""

import os
import secrets
import signal
import sys
import threading
from pathlib import Path
from typing import NoReturn

import click

from sbf_service import server
from sbf_service.bootstrap import SbfService, build_service, replica_name
from sbf_service.command_options import report_bad_input
from sbf_service.drivers.contract import EdgePlatform
from sbf_service.drivers.switch.simulated_switch import PLATFORM, SwitchFolder
from sbf_service.local_files import private_file
from sbf_service.log import log_to_stderr
from sbf_service.settings import ListenAddress, ServiceSettings, ServiceTiming
from sbf_service.store.connections.replica_lock import hold_replica_name
from sbf_service.store.users.tokens import create_token
from virtcloud.model.access import Role, TokenRequest
from virtcloud.model.element import Edge
from virtcloud.model.errors import BadInput
from virtcloud.model.values import Name

LOCK_S = 2.0
OPERATOR = Name("admin")
TIMING = ServiceTiming(drift_interval=15, retry_most=5, agent_silence=20)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--listen", default="127.0.0.1:8800", help="Address to listen on.")
@click.option("--change-seconds", type=float, default=1.0, help="Seconds that a simulated switch takes for a change.")
def main(folder: Path, listen: str, change_seconds: float) -> None:
    """Run SBF with simulated switches until its standard input ends."""
    log_to_stderr()
    with report_bad_input():
        database = f"sqlite:///{folder.absolute() / 'sbf.db'}"
        settings = ServiceSettings(
            database=database, listen=ListenAddress(listen), replica=Name("simulation"), timing=TIMING
        )
        service = build_simulation(settings, SwitchFolder(folder, change_seconds))
        with hold_replica_name(service.store.engine, replica_name(settings), LOCK_S):
            service.prepare()
            _ensure_operator(service, folder / "operator.token")
            sockets = server.open_sockets(service)
            threading.Thread(target=_end_with_input, daemon=True).start()
            server.run_server(service, sockets)


def build_simulation(settings: ServiceSettings, folder: SwitchFolder) -> SbfService:
    """Return a service whose only platform is the simulated switch."""
    return build_service(settings, folder.platform_of, edge_platforms=_refuse_edge)


def _refuse_edge(edge: Edge) -> EdgePlatform:
    raise BadInput(
        f"edge {edge.name}: 'virtcloud up' simulates switches (platform {PLATFORM}) and hosts, but no provider edges: "
        "use a transport of kind direct or qinq, or the lab (virtcloud lab up)"
    )


def _ensure_operator(service: SbfService, file: Path) -> None:
    if file.exists():
        return
    with private_file(file) as opened, service.store.change(who="virtcloud up") as unit:
        request = TokenRequest(name=OPERATOR, role=Role.OPERATOR)
        opened.write(f"{create_token(unit, request, secrets.token_bytes).token}\n")


def _end_with_input() -> NoReturn:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)
    raise SystemExit


if __name__ == "__main__":
    main()
