"""Tell the story of one seed: ``PYTHONPATH=tests .venv/bin/python -m simulation SEED``."""

import sys

from simulation.schedule import BrokenError, Schedule


def main(seed: int) -> int:
    """Run it, print every step, and what was broken."""
    schedule = Schedule(seed)
    try:
        schedule.run()
        broken = "nothing was broken"
    except BrokenError as error:
        broken = f"BROKEN: {error}"
    sys.stdout.write("\n".join([*schedule.told, broken, ""]))
    return int(broken.startswith("BROKEN"))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
