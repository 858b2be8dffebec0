"""An MPI program that measures the bandwidth between all pairs of its processes.

Start the program: mpirun --hostfile FILE python3 bandwidth.py. Two processes send a message back and forth while the
others wait. Needs Open MPI and mpi4py.
"""

import time

from mpi4py import MPI  # type: ignore[import-not-found]

MESSAGE = bytearray(4 << 20)
ROUNDS = 5


def exchange(world: MPI.Comm, peer: int, *, first: bool) -> None:
    """Exchange a message with a peer. If ``first`` is true, send first; otherwise, receive first."""
    if first:
        world.Send(MESSAGE, peer)
        world.Recv(MESSAGE, peer)
    else:
        world.Recv(MESSAGE, peer)
        world.Send(MESSAGE, peer)


def measure(world: MPI.Comm, peer: int, *, first: bool) -> float:
    """Return the bandwidth to a peer in Mbit/s. The first round is not measured, because it opens the connection."""
    exchange(world, peer, first=first)
    start = time.perf_counter()
    for _ in range(ROUNDS):
        exchange(world, peer, first=first)
    return 2 * ROUNDS * len(MESSAGE) * 8 / (time.perf_counter() - start) / 1e6


def main() -> None:
    """Print a line for each pair of processes."""
    world = MPI.COMM_WORLD
    names = world.allgather(MPI.Get_processor_name())
    for a in range(world.size):
        for b in range(a + 1, world.size):
            world.Barrier()
            if world.rank in {a, b}:
                rate = measure(world, b if world.rank == a else a, first=world.rank == a)
                if world.rank == a:
                    print(f"{names[a]} - {names[b]}: {rate:.0f} Mbit/s", flush=True)


main()
