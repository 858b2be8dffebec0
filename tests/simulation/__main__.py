"""Print the steps of one seed's schedule: ``PYTHONPATH=tests .venv/bin/python -m simulation SEED``."""

import logging
import sys

from simulation.invariants import BrokenError
from simulation.schedule import Schedule


def main(seed: int) -> int:
    logging.disable(logging.CRITICAL)
    schedule = Schedule(seed)
    try:
        schedule.run()
        broken = "all invariants hold"
    except BrokenError as error:
        broken = f"BROKEN: {error}"
    sys.stdout.write("\n".join([*schedule.log, broken, ""]))
    return int(broken.startswith("BROKEN"))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
