import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from virtcloud.agent import run
from virtcloud.model.errors import BadInput


def test_a_second_agent_on_one_machine_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "agent.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(BadInput, match="another agent runs with the state folder"), run._only_one(tmp_path):
            pass


def test_wrong_settings_are_a_message_and_exit_code_2(tmp_path: Path) -> None:
    ended = _python(
        "import sys; from virtcloud.agent.run import main; sys.exit(main(sys.argv[1:]))",
        "--config",
        str(tmp_path / "x"),
    )
    assert (ended.returncode, ended.stderr.startswith("virtcloud: ")) == (2, True)


@pytest.mark.parametrize("missing", ["pyroute2", "libvirt"])
def test_a_missing_library_is_told_with_the_extra_to_install(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from virtcloud.agent import run; run._assembly()"
    ended = _python(code)
    assert (
        f"the agent needs what a plain client does not: {missing}; install it with: pip install 'virtcloud[agent]'"
        in ended.stderr
    )


def test_importing_the_agent_imports_neither_libvirt_nor_pyroute2() -> None:
    code = "import sys, virtcloud.agent.run; print({'libvirt', 'pyroute2'} & set(sys.modules))"
    assert _python(code).stdout.strip() == "set()"


def _python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)  # noqa: S603
