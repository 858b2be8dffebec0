import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

import pytest

from virtcloud.agent import bootstrap
from virtcloud.model.errors import BadInput


def test_a_second_agent_with_the_same_state_folder_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "agent.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with (
            pytest.raises(BadInput, match="another agent uses the state folder"),
            bootstrap._lock_state_folder(tmp_path),
        ):
            pass


def test_malformed_settings_end_the_agent_with_exit_code_2(tmp_path: Path) -> None:
    process = _python(
        "import sys; from virtcloud.agent.bootstrap import main; sys.exit(main(sys.argv[1:]))",
        "--config",
        str(tmp_path / "x"),
    )
    assert (process.returncode, process.stderr.startswith("virtcloud: ")) == (2, True)


@pytest.mark.parametrize("missing", ["pyroute2", "libvirt"])
def test_a_missing_library_is_reported_with_the_extra_to_install(missing: str) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None; from virtcloud.agent import bootstrap as b; b._import_adapters()"
    )
    process = _python(code)
    assert (
        f"the agent needs {missing}, which is not installed; install it with: pip install 'virtcloud[agent]'"
        in process.stderr
    )


def test_importing_the_agent_imports_neither_libvirt_nor_pyroute2() -> None:
    code = "import sys, virtcloud.agent.bootstrap; print({'libvirt', 'pyroute2'} & set(sys.modules))"
    assert _python(code).stdout.strip() == "set()"


AGENT_WITHOUT_HOST = """
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from support.fake_machine.reconciler import FakeManagedHost
from virtcloud.agent import bootstrap
adapters = SimpleNamespace(
    open_host=lambda *_: nullcontext(FakeManagedHost()),
    make_job_relays=lambda *_: None,
    make_guest_connector=lambda *_: None,
    open_bridge=lambda _segment: None,
    make_image_cache=lambda *_: SimpleNamespace(),
)
bootstrap._import_adapters = lambda: adapters
sys.exit(bootstrap.main(sys.argv[1:]))
"""


def test_one_agent_serves_a_host_and_a_scheduler() -> None:
    folder = Path(tempfile.mkdtemp())  # not tmp_path, because the path of a socket has at most 107 characters
    lines = ['element = "h1"', f'sbf = "unix://{folder}/none"', f'state = "{folder}"', f'socket = "{folder}/a.sock"']
    lines += [f'jobs = "{folder}/jobs"', "[scheduler]", f'commands = "{folder}"', f'status = "{folder}/status.json"']
    (folder / "agent.toml").write_text("\n".join(lines))
    argv = [sys.executable, "-c", AGENT_WITHOUT_HOST, "--config", str(folder / "agent.toml")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=environment) as agent:  # noqa: S603
        events = _read_events(agent.stderr, {"started", "reconciling", "sbf_unreachable", "alert"})
        agent.terminate()
    assert agent.returncode == 0
    assert events["started"].startswith("INFO started element=h1 ")
    assert "alert=scheduler-silent" in events["alert"]
    assert f"{folder}/qstat cannot be run" in events["alert"]
    shutil.rmtree(folder)


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_folder_modes_do_not_depend_on_the_callers_umask(umask: int) -> None:
    """With umask 077, QEMU could not reach the disks of guests. With umask 000, all users could replace the disks."""
    folder = Path(tempfile.mkdtemp())  # not tmp_path, because the path of a socket has at most 107 characters
    state, run = folder / "state/agent", folder / "run/virtcloud"
    lines = ['element = "h1"', f'sbf = "unix://{folder}/none"', f'state = "{state}"', f'socket = "{run}/a.sock"']
    (folder / "agent.toml").write_text("\n".join(lines))
    argv = [sys.executable, "-c", AGENT_WITHOUT_HOST, "--config", str(folder / "agent.toml")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=environment, umask=umask) as agent:  # noqa: S603
        _read_events(agent.stderr, {"started"})
        agent.terminate()
    modes = {path.name: path.stat().st_mode & 0o777 for path in (state.parent, state, state / "jobs", run)}
    assert modes == {"state": 0o755, "agent": 0o755, "jobs": 0o755, "virtcloud": 0o755}
    shutil.rmtree(folder)


def _read_events(lines: IO[str] | None, wanted: set[str]) -> dict[str, str]:
    assert lines is not None
    events: dict[str, str] = {}
    while not wanted <= set(events):
        line = lines.readline()
        assert line, events
        if line.startswith(("INFO ", "WARNING ")):
            events.setdefault(line.split()[1], line)
    return events


def _python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)  # noqa: S603
