"""Runs the named benchmarks, or all benchmarks, and updates their sections in ``docs/reference/speed.md``."""

import importlib
import sys

from benchmarks.measurement import Measurement, write_section

ALL = (
    "many_switches",
    "many_clusters",
    "second_change",
    "claims",
    "replicas",
    "allocation",
    "idle_memory",
    "server_hook",
    "job_start",
    "host_segments",
    "guest_starts",
    "guest_login",
    "agent_memory",
    "guest_filters",
    "guest_streams",
    "vpn_gateway",
    "side_by_side",
)


def main(names: list[str]) -> int:
    """Run benchmarks and print their results. Return 0 if every target was met."""
    results: dict[str, list[Measurement]] = {}
    for name in names or ALL:
        results[name] = _run(name)
        if results[name]:
            write_section(name, results[name], ALL)
    return 0 if all(measurement.met for measurements in results.values() for measurement in measurements) else 1


def _run(name: str) -> list[Measurement]:
    measurements = []
    for measurement in importlib.import_module(f"benchmarks.{name}").run():
        print(f"{name}: {measurement}", flush=True)  # noqa: T201 - a command's output
        measurements.append(measurement)
    return measurements


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
