"""Plots of simulated traces, with matplotlib."""

from pathlib import Path
from typing import Any


def plot_trace(found: dict[str, Any], file: Path) -> None:
    """Plot the durations of each job's steps, and SBF's use of the processors, over the time of a trace."""
    import matplotlib as mpl  # noqa: PLC0415 - only this function needs matplotlib

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, (times, processors) = plt.subplots(2, 1, sharex=True, figsize=(9, 7), height_ratios=(2, 1))
    at_s = [job[0] for job in found["jobs"]]
    for name, place, marker in (("claim", 1, "."), ("until active", 2, "x"), ("delete", 3, "+")):
        points = [(at, job[place]) for at, job in zip(at_s, found["jobs"], strict=True) if job[place] is not None]
        times.scatter(*zip(*points, strict=True), marker=marker, s=18, linewidths=0.8, label=name)
    times.set(yscale="log", ylabel="seconds", title=f"{found['clusters']} clusters, {found['agents']} agents")
    times.legend()
    times.grid(alpha=0.3)
    samples = found["samples"]
    processors.plot(samples["at_s"], samples["processors"])
    processors.set(xlabel="seconds since the start of the trace", ylabel="processors used by SBF", ylim=(0, None))
    processors.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(file)
    plt.close(figure)
