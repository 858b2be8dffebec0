import subprocess

from virtcloud.jobs.script_variables import SCRIPT_VARIABLES, render_shell_commands

OF_ANOTHER_JOB = dict.fromkeys(SCRIPT_VARIABLES, "former") | {"VCLUSTER_MINE": "1"}


def environment_after(commands: str) -> set[str]:
    run = ["/bin/sh", "-euc", f"{commands}env"]
    done = subprocess.run(run, env=OF_ANOTHER_JOB, capture_output=True, text=True, check=True)  # noqa: S603 - our own
    return {line for line in done.stdout.splitlines() if line.startswith("VCLUSTER_")}


def test_variables_of_another_job_are_unset() -> None:
    commands = render_shell_commands({"VCLUSTER_ID": "12.pbssrv", "VCLUSTER_GUESTS": "g1 g2"})
    assert environment_after(commands) == {"VCLUSTER_ID=12.pbssrv", "VCLUSTER_GUESTS=g1 g2", "VCLUSTER_MINE=1"}


def test_all_variables_may_be_set() -> None:
    assert "unset" not in render_shell_commands(dict.fromkeys(SCRIPT_VARIABLES, "1"))
