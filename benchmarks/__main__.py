"""Run the named benchmarks, or all; each one writes its section of ``docs/reference/speed.md``."""

import importlib
import sys

from benchmarks.measurement import Measurement, write_section

ALL = (
    "many_switches",
    "many_clusters",
    "second_change",
    "claims",
    "allocation",
    "idle_memory",
    "server_hook",
    "job_start",
    "side_by_side",
)


def main(names: list[str]) -> int:
    """Run benchmarks and print their results. Return 0 if every target was met."""
    found: dict[str, list[Measurement]] = {}
    for name in names or ALL:
        found[name] = _run(name)
        if found[name]:
            write_section(name, found[name], ALL)
    return 0 if all(measurement.met for figures in found.values() for measurement in figures) else 1


def _run(name: str) -> list[Measurement]:
    figures = []
    for measurement in importlib.import_module(f"benchmarks.{name}").run():
        print(f"{name}: {measurement}", flush=True)  # noqa: T201 - a command's output
        figures.append(measurement)
    return figures


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
