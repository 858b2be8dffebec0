"""Prints how each cost grows with the number of live clusters, from figures of ``python -m benchmarks.scale --json``.

Usage: ``python -m benchmarks.scale.exponents FILE DATABASE SIZE SIZE SIZE...``. A cost with the exponent 0 does not
depend on the number of clusters; a cost with the exponent 1 is proportional to this number. The exponent is the slope
of the least-squares line through the logarithms of the numbers and of the costs.
"""

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import linear_regression

from benchmarks.scale.sizes import SIZES


def compute_exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Return the exponent of a cost over sizes. All values must be positive."""
    return linear_regression([math.log(size) for size in sizes], [math.log(cost) for cost in costs]).slope


def main() -> None:
    """Print a table with a row for each operation."""
    parser = argparse.ArgumentParser(prog="benchmarks.scale.exponents")
    parser.add_argument("file", type=Path)
    parser.add_argument("database", choices=("sqlite", "postgresql"))
    parser.add_argument("sizes", nargs="+", choices=SIZES)
    options = parser.parse_args()
    known = json.loads(options.file.read_text("utf-8"))
    figures = [known[f"{options.database} {name}"] for name in options.sizes]
    live = [SIZES[name].live for name in options.sizes]
    print("| operation | " + " | ".join(f"{SIZES[name]}" for name in options.sizes) + " | exponent |")  # noqa: T201
    print("|---" * (len(figures) + 2) + "|")  # noqa: T201
    for operation in figures[0]:
        costs = [found[operation][0] for found in figures]
        exponent = f"{compute_exponent(live, costs):.2f}" if min(costs) > 0 else "not measurable"
        print(f"| {operation} | " + " | ".join(f"{1000 * cost:.1f} ms" for cost in costs) + f" | {exponent} |")  # noqa: T201


if __name__ == "__main__":
    main()
