"""``sbf serve`` with switches in memory, which answer at once: ``python -m benchmarks.scale.switches_in_memory FILE``.

FILE contains the settings. The process ends on SIGTERM.
"""

import gc
import sys
from pathlib import Path

from sbf_fakes.switches import FakeSwitches

from sbf_service import server
from sbf_service.__main__ import COLLECTION_THRESHOLDS
from sbf_service.bootstrap import build_service
from sbf_service.command_options import load_settings
from sbf_service.settings import ServiceSettings


def serve(settings: ServiceSettings) -> None:
    """Run SBF until SIGTERM, with the thresholds of the garbage collector of ``sbf serve``."""
    gc.freeze()
    gc.set_threshold(*COLLECTION_THRESHOLDS)
    service = build_service(settings, FakeSwitches().platform_of)
    service.prepare()
    server.run_server(service, server.open_sockets(service))


if __name__ == "__main__":
    serve(load_settings(Path(sys.argv[1])))
