"""Memory of an agent: without clusters, and with 200 clusters on its host.

A real agent runs in namespaces of this machine's kernel, with a libvirtd for containers and with filters of guests. A
simulated SBF only sends the wanted state. The benchmark reads the memory after the agent has confirmed the wanted state
and then read the host's state three times.

RSS (resident memory) counts every resident page in full, even if other processes use the same page. PSS divides each
page by the number of processes that use the page. USS counts only pages that no other process uses. The target of 60 MB
concerns RSS, the greatest of the three values. To compute the memory of several processes together, add their PSS.

A new interpreter imports the libraries in the order of the rows whose names begin with "share:". The first of these
rows is RSS before the imports. Each following row except the last row is the growth of RSS during the import of the
row's library. The last row, "share: growth at run time", is RSS with 200 clusters minus the sum of the shares in the
rows above. The growth is small, because the agent releases pages of programs and libraries after the imports
(`virtcloud/agent/own_memory.py`).

RSS stays above 60 MB as long as the agent's code uses libvirt, httpx, pydantic and pyroute2 (decision 62). PSS and USS
meet the target.
"""

import json
import shutil
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from urllib.parse import parse_qs, urlsplit

from benchmarks.container_host import ROOT, NoContainerHost, libvirt_of_containers, run_in_namespaces
from benchmarks.measurement import Measurement
from virtcloud.lab.lab_images import make_container_image

CLUSTERS, RUNNING, READINGS = 200, 12, 3
CHECK_S, TIMEOUT_S = 2, 400
IMPORTS = (
    *("virtcloud.client", "ssl", "httpx", "pydantic", "yaml", "libvirt", "pyroute2"),
    *("virtcloud.agent.bootstrap", "virtcloud.agent.host_bootstrap"),
)
SHARES = """
import importlib, json, os, sys
def read(): return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
shares = {"the interpreter": read()}
for name in sys.argv[1:]:
    before = read()
    importlib.import_module(name)
    shares[name] = read() - before
print(json.dumps(shares))
"""
AGENT = "from virtcloud.command import main; import sys; sys.exit(main())"


def run() -> Iterator[Measurement]:
    """Measure in new namespaces of this machine's kernel."""
    try:
        found = json.loads(run_in_namespaces("benchmarks.agent_memory"))
    except NoContainerHost as error:
        print(f"agent_memory: not measured: {error}", flush=True)  # noqa: T201 - a command's output
        return
    yield Measurement("memory of an agent without clusters (RSS)", found["idle"]["Rss"], "MB")
    yield Measurement(f"memory of an agent with {CLUSTERS} clusters (RSS)", found["busy"]["Rss"], "MB", 60)
    yield Measurement(f"memory of an agent with {CLUSTERS} clusters (PSS)", found["busy"]["Pss"], "MB", 60)
    yield Measurement(f"memory of an agent with {CLUSTERS} clusters (USS)", found["busy"]["Uss"], "MB")
    yield Measurement(
        f"anonymous memory of an agent with {CLUSTERS} clusters (part of the RSS)", found["busy"]["Anonymous"], "MB"
    )
    shares = json.loads(subprocess.check_output([sys.executable, "-c", SHARES, *IMPORTS], text=True, cwd=ROOT))  # noqa: S603
    for name, share in shares.items():
        yield Measurement(f"share: {name}", share, "MB")
    yield Measurement("share: growth at run time", found["busy"]["Rss"] - sum(shares.values()), "MB")


class WantedServer(socketserver.ThreadingUnixStreamServer):
    """A simulated SBF that sends a wanted document. Counts the agent's polls since the agent confirmed the document."""

    daemon_threads = True

    def __init__(self, path: Path) -> None:
        """Listen at the Unix socket ``path``. The first wanted document is empty."""
        super().__init__(str(path), _Answers)
        self.document: dict[str, Any] = {"element": "h1", "revision": 1, "confirmed_revision": 0, "wanted": {}}
        self.polls = 0

    def want(self, segments: list[dict[str, Any]]) -> None:
        """Replace the segments of the wanted document."""
        self.polls = 0
        self.document = {**self.document, "revision": self.document["revision"] + 1, "wanted": {"segments": segments}}

    def wait_for_readings(self) -> None:
        """Wait until the agent has confirmed the document and then read the host's state three times."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.polls < READINGS:
            if time.monotonic() > deadline:
                raise TimeoutError("the agent did not confirm the wanted state")
            time.sleep(0.1)


class _Answers(BaseHTTPRequestHandler):
    server: WantedServer
    protocol_version = "HTTP/1.1"

    def address_string(self) -> str:
        """Return a constant, because a caller at a Unix socket has no address."""
        return "agent"

    def log_message(self, *_arguments: object) -> None:
        """Discard the message."""

    def do_GET(self) -> None:
        """Answer a long poll."""
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        document = self.server.document
        if not parts.path.endswith("/wanted"):
            time.sleep(float(query.get("wait", ["1"])[0]))
            return self._answer(b"[]")
        if document["confirmed_revision"] == document["revision"]:
            self.server.polls += 1
        if int(query.get("after", ["0"])[0]) >= document["revision"]:
            time.sleep(float(query["wait"][0]))
        return self._answer(json.dumps(self.server.document).encode())

    def do_POST(self) -> None:
        """Record a confirmation. Print other reports to standard error."""
        report = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path.endswith("/confirmed"):
            self.server.document["confirmed_revision"] = report["revision"]
        else:
            sys.stderr.write(f"{self.path}: {report}\n")
        self._answer(b"{}")

    do_PUT = do_POST  # noqa: N815 - http.server's name

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def measure() -> dict[str, dict[str, float]]:
    """Return the memory of an agent in MB, without clusters (``idle``) and with clusters (``busy``)."""
    folder = Path(mkdtemp())
    folder.chmod(0o711)
    try:
        with libvirt_of_containers(), _serve(folder / "sbf.sock") as sbf:
            make_container_image(folder / "images")
            _create_uplinks()
            with _agent(folder) as process:
                sbf.wait_for_readings()
                idle = _read_memory_mb(process)
                sbf.want([_segment(number, is_running=number < RUNNING) for number in range(CLUSTERS)])
                sbf.wait_for_readings()
                busy = _read_memory_mb(process)
                sbf.want([_segment(number, is_running=False) for number in range(CLUSTERS)])
                sbf.wait_for_readings()
            return {"idle": idle, "busy": busy}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _serve(path: Path) -> Iterator[WantedServer]:
    with WantedServer(path) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@contextmanager
def _agent(folder: Path) -> Iterator[int]:
    settings = folder / "agent.toml"
    settings.write_text(
        f'element = "h1"\nsbf = "unix://{folder}/sbf.sock"\nimages = "{folder}/images"\nstate = "{folder}/state"\n'
        f'socket = "{folder}/agent.sock"\njobs = "{folder}/jobs"\nbridged_frames_filtered = "accept"\n'
        f'[hypervisors]\nlxc = "lxc:///system"\n[guests]\nconfined = false\nstop_grace = 1\n'
        f"[timing]\ncheck = {CHECK_S}\n"
    )
    log = (folder / "agent.log").open("w")
    argv = [sys.executable, "-c", AGENT, "agent", "--config", str(settings)]
    with log, subprocess.Popen(argv, stderr=log) as process:  # noqa: S603 - no input
        try:
            yield process.pid
        except TimeoutError:
            sys.stderr.write((folder / "agent.log").read_text()[-3000:])
            raise
        finally:
            process.terminate()
            process.wait()


def _read_memory_mb(process: int) -> dict[str, float]:
    """Return the memory of a process in MB: RSS, PSS, USS and anonymous memory (proc_pid_smaps(5))."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {name: int(size.split()[0]) * 1024 / 1e6 for name, size in (line.split(":") for line in lines)}
    return {**sizes, "Uss": sizes["Private_Clean"] + sizes["Private_Dirty"]}


def _create_uplinks() -> None:
    commands = "".join(
        f"link add up{number} type veth peer name sw{number}\nlink set up{number} up\n" for number in range(CLUSTERS)
    )
    subprocess.run(["ip", "-batch", "-"], input=commands, text=True, check=True)  # noqa: S607


def _segment(number: int, *, is_running: bool) -> dict[str, Any]:
    guest = {
        "name": "n1",
        "image": "busybox",
        "memory_mb": 32,
        "cpus": 1,
        "mac": f"02:00:00:00:00:{number:02x}",
        "addresses": ["10.0.0.1/24"],
        **({} if is_running else {"power": "off"}),
    }
    attachment = {"vlan": 100 + number, "port": f"up{number}", "untagged": True}
    return {"id": f"{number:032x}", "key": f"c{number}", **attachment, "guests": [guest]}


if __name__ == "__main__":
    print(json.dumps(measure()))  # noqa: T201 - a command's output
