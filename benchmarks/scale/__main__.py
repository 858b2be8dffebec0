"""Measures the costs of SBF's operations for each given size of an installation, and prints a table.

``--json`` also adds the costs to a JSON file.

Usage: ``python -m benchmarks.scale [--database sqlite|postgresql] [--json FILE] [--repeat N] [--calls] SIZE...``
"""

import argparse
import json
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.scale.costs import Costs, ServerProcesses
from benchmarks.scale.filling import fill
from benchmarks.scale.operations import MEASURES_ITSELF, MeasuredService, Operation
from benchmarks.scale.sizes import SIZES, InstallationSize

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))


@contextmanager
def open_database(kind: str) -> Iterator[tuple[str, ServerProcesses | None]]:
    """Yield the address of an empty database, and the processes of its server (None for SQLite)."""
    if kind == "sqlite":
        with TemporaryDirectory() as folder:
            yield f"sqlite:///{folder}/sbf.db", None
        return
    from support.programs.postgres import running  # noqa: PLC0415 - needs a driver that may be absent

    with running(shared_buffers="256MB") as server:
        yield server.url(server.new_database()), ServerProcesses(server.pid)


def measure_size(
    database: str, server: ServerProcesses | None, size: InstallationSize, repeat: int, *, whole: bool = True
) -> dict[str, Costs]:
    """Fill a database and return the median costs of each operation.

    If ``whole``, also measure the operations whose answer or input contains the whole installation.
    """
    measured = MeasuredService(database, size)
    measured.server = server
    measured.service.prepare()
    started = time.process_time()
    fill(measured.store, size)
    print(f"{size}: filled in {time.process_time() - started:.0f} s of processor time", file=sys.stderr, flush=True)  # noqa: T201
    found = {}
    with measured.counter.measure(server) as costs:
        measured.claim()
    found["first claim"] = costs
    measured.settle()
    for name, operation in measured.operations.items():
        found[name] = measure_operation(measured, name, operation, repeat)
    for name, operation in measured.whole_operations.items() if whole else ():
        found[name] = measure_operation(measured, name, operation, 2)
    measured.finish()
    return found


def measure_operation(measured: MeasuredService, name: str, operation: Operation, repeat: int) -> Costs:
    """Return the median costs of an operation. The first call, which compiles statements, does not count.

    With a database server, the processor time is the mean instead of the median.
    """
    all_costs = []
    for _ in range(repeat + 1):
        if name in MEASURES_ITSELF:
            operation()
            all_costs.append(measured.counter.costs)
        else:
            with measured.counter.measure(measured.server) as costs:
                operation()
            all_costs.append(costs)
    counted = all_costs[1:]
    seconds = [costs.processor_s for costs in counted]
    return Costs(
        statements=int(median(costs.statements for costs in counted)),
        rows=int(median(costs.rows for costs in counted)),
        processor_s=sum(seconds) / len(seconds) if measured.server else median(seconds),
    )


def main() -> int:
    """Measure the operations for each size on the command line, and print a table."""
    parser = argparse.ArgumentParser(prog="benchmarks.scale")
    parser.add_argument("sizes", nargs="+", choices=SIZES)
    parser.add_argument("--database", default="sqlite", choices=("sqlite", "postgresql"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument(
        "--calls", action="store_true", help="omit operations whose answer or input contains the whole installation"
    )
    options = parser.parse_args()
    for name in options.sizes:
        with open_database(options.database) as (database, server):
            found = measure_size(database, server, SIZES[name], options.repeat, whole=not options.calls)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"\n{options.database}, {SIZES[name]}; highest memory of this process: {memory:.0f} MB")  # noqa: T201
        for operation, costs in found.items():
            counted = f"{costs.statements:5} statements {costs.rows:7} rows"
            print(f"  {operation:24} {1000 * costs.processor_s:9.2f} ms {counted}")  # noqa: T201
        sys.stdout.flush()
        if options.json:
            known = json.loads(options.json.read_text("utf-8")) if options.json.exists() else {}
            known[f"{options.database} {name}"] = {
                operation: [costs.processor_s, costs.statements, costs.rows] for operation, costs in found.items()
            }
            options.json.write_text(json.dumps(known, indent=1), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
