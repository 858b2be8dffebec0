"""A process with many polling agents: one connection and one task for each agent. See :mod:`benchmarks.scale.polls`.

Each agent sends long polls for its wanted document, as a real agent does. The agent repeats a refused call after the
time in ``Retry-After``. After each lost connection, the agent waits for a longer time before it connects again.

The process reads the agents' names and tokens from a file. It writes events as lines: the monotonic time, the event and
the agent.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from sbf_service.http.entity_tags import make_wanted_etag

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
HTTP_OK, NOT_MODIFIED = 200, 304


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the service."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class PollingAgent:
    """An agent that polls. ``wait`` is the duration of a long poll in seconds.

    ``revision`` is the newest received revision, or None. With the option ``--settled``, an agent starts as if it had
    received revision 1.
    """

    name: str
    token: str
    address: tuple[str, int]
    wait: int
    revision: int | None = None
    etag: str | None = None
    is_served: bool = False

    async def run(self) -> None:
        """Poll until the task is cancelled."""
        pause = FIRST_PAUSE_S
        while True:
            try:
                pause = await self._poll_connected() or pause
            except (OSError, EOFError, ValueError):
                pause = min(2 * pause, LONGEST_PAUSE_S)
            if self.is_served:
                write_event("lost", self.name)
            self.is_served = False
            await asyncio.sleep(pause * (1 + random.random() / 2))  # noqa: S311 - no secret

    async def _poll_connected(self) -> float | None:
        """Poll over one connection until the service refuses a call or closes the connection.

        Return the seconds to wait; None if the ``Retry-After`` of a refused call is missing or 0.
        """
        reader, writer = await asyncio.open_connection(*self.address, limit=1 << 14)
        try:
            while True:
                answer = await self._get(reader, writer)
                if answer.status == NOT_MODIFIED:
                    self._receive(self.revision or 0)
                    continue
                if answer.status != HTTP_OK:
                    write_event(f"refused-{answer.status}", self.name)
                    return float(answer.headers.get("retry-after", "0")) or None
                self._receive(int(json.loads(answer.body)["revision"]))
                self.etag = answer.headers.get("etag")
                if answer.headers.get("connection") == "close":
                    return FIRST_PAUSE_S
        finally:
            writer.close()

    def _receive(self, revision: int) -> None:
        if not self.is_served:
            self.is_served = True
            write_event("served", self.name)
        elif revision != self.revision:
            write_event("changed", self.name)
        self.revision = revision

    async def _get(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Answer:
        wait = self.wait if self.is_served else 0
        query = "" if self.revision is None else f"?after={self.revision}&wait={wait}"
        known = "" if self.etag is None else f"if-none-match: {self.etag}\r\n"
        writer.write(
            f"GET /v1/elements/{self.name}/wanted{query} HTTP/1.1\r\nhost: sbf\r\nuser-agent: virtcloud/bench\r\n"
            f"authorization: Bearer {self.token}\r\n{known}\r\n".encode()
        )
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        return Answer(int(head[0].split()[1]), headers, body)


def write_event(event: str, name: str) -> None:
    """Write an event with the monotonic time, which all processes of the machine share."""
    sys.stdout.write(f"{time.monotonic():.4f} {event} {name}\n")


async def run_agents(agents: list[PollingAgent], open_per_s: float) -> None:
    """Start ``open_per_s`` agents in each second, and write the collected events ten times a second."""
    tasks = []
    for number, agent in enumerate(agents):
        tasks.append(asyncio.create_task(agent.run()))
        if number % 10 == 0:
            await asyncio.sleep(10 / open_per_s)
    while True:
        sys.stdout.flush()
        await asyncio.sleep(0.1)


def main() -> int:
    """Run the agents that a file lists, until the process is killed."""
    parser = argparse.ArgumentParser(prog="benchmarks.scale.poll_clients")
    parser.add_argument("file", type=Path)
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("wait", type=int)
    parser.add_argument(
        "--settled",
        action="store_true",
        help="each agent starts as if it had already received revision 1 of its document",
    )
    options = parser.parse_args()
    lines = [line.split() for line in options.file.read_text("utf-8").splitlines()]
    agents = [PollingAgent(name, token, (options.host, options.port), options.wait) for name, token in lines]
    if options.settled:
        for agent in agents:
            agent.revision, agent.etag = 1, make_wanted_etag(1)
    asyncio.run(run_agents(agents, len(agents) / options.wait if options.settled else 2_000))
    return 0


if __name__ == "__main__":
    sys.exit(main())
