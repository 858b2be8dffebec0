"""``sbf serve`` with switches in memory, which answer at once.

Usage: ``PYTHONPATH=tests python -m benchmarks.scale.switches_in_memory [--without-workers] FILE``. FILE contains the
settings. With ``--without-workers``, the scheduler assigns due devices to workers, but no worker runs, so that no
device is ever reconciled. The process ends on SIGTERM.
"""

import argparse
import gc
from pathlib import Path

from support.sbf_fakes.switches import FakeSwitches

from sbf_service import server
from sbf_service.__main__ import COLLECTION_THRESHOLDS
from sbf_service.bootstrap import build_service
from sbf_service.command_options import load_settings
from sbf_service.settings import ServiceSettings


def serve(settings: ServiceSettings, *, with_workers: bool = True) -> None:
    """Run SBF until SIGTERM, with the thresholds of the garbage collector of ``sbf serve``."""
    gc.freeze()
    gc.set_threshold(*COLLECTION_THRESHOLDS)
    service = build_service(settings, FakeSwitches().platform_of)
    service.prepare()
    if not with_workers:
        service.scheduler.spawn = lambda _work, _name: None
    server.run_server(service, server.open_sockets(service))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="benchmarks.scale.switches_in_memory")
    parser.add_argument("--without-workers", action="store_true")
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    serve(load_settings(options.file), with_workers=not options.without_workers)
