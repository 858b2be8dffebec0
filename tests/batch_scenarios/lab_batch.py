"""A fake batch system for a lab. Its hooks and scripts run on the lab's nodes, where the hosts' agents also run."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from pbs_hooks.bundle import bundle_hook
from virtcloud.client.credentials import write_token
from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab, addressing, node_services
from virtcloud.lab.state import STATE_FOLDER_VARIABLE
from virtcloud.model.access import Role
from virtcloud.testing.fakepbs.fake_batch import FakeBatch
from virtcloud.testing.fakepbs.hook_event import HookEvent, HookOutcome
from virtcloud.testing.fakepbs.hook_runner import FakeHost, HookDefinition, run_hook


class HostInLab(FakeHost):
    """A host of the lab. Its hooks run as root. A job's script runs as the job's user, in the user's home."""

    def __init__(self, lab: Lab, name: str, folder: Path) -> None:
        super().__init__(name)
        self._lab, self._folder = lab, folder

    def hook(self, hook: HookDefinition, event: HookEvent) -> HookOutcome:
        config = json.dumps({"socket": node_services.AGENT_SOCKET})
        return run_hook(
            hook.text, replace(event, config=config), hook.python, folder=self._folder, run_program=self._run
        )

    def _run(self, command: Sequence[str], timeout_s: float) -> "subprocess.CompletedProcess[str]":
        return self._lab.run(self.name, command, timeout_s=timeout_s)

    def start(self, script: str, env: Mapping[str, str], stdout: Path, stderr: Path) -> "subprocess.Popen[bytes]":
        """Start a job's script on this host. Return the local process that is connected to the script.

        A signal to the local process ends only the connection, not the script.
        """
        user = env["LOGNAME"]
        uid, home = str(addressing.USERS[user]), f"/run/{user}"
        variables = {**env, "HOME": home, "PBS_O_WORKDIR": home}
        become = ["setpriv", "--reuid", uid, "--regid", uid, "--clear-groups", "env", "-i", "-C", home]
        command = [*become, *(f"{name}={text}" for name, text in variables.items()), "/bin/bash", "-c", script]
        with stdout.open("ab") as out, stderr.open("ab") as err:
            return subprocess.Popen(  # noqa: S603 - a script of a test
                [sys.executable, "-m", "virtcloud.cli", "lab", "exec", self.name, "--", *command],
                env=os.environ | {STATE_FOLDER_VARIABLE: str(self._lab.state.folder)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )


@contextmanager
def batch_in_lab(lab: Lab, client: SbfClient, hosts: Sequence[str]) -> Iterator[FakeBatch]:
    with TemporaryDirectory(dir=node_services.CACHE) as name:
        folder = Path(name)
        created = client.create_token("fake-pbs", Role.SCHEDULER)
        token = folder / "pbs.token"
        write_token(token, created.token)
        settings = {"sbf": f"unix://{lab.sbf_socket}", "token_file": str(token)}
        server = HookDefinition(bundle_hook("server"), json.dumps(settings), alarm=30, name="virtcloud_server")
        mom = HookDefinition(bundle_hook("mom"), "{}", alarm=600, name="virtcloud_mom")
        machines = [HostInLab(lab, host, folder) for host in hosts]
        with FakeBatch(machines, folder, server_hook=server, mom_hook=mom) as batch:
            yield batch
        client.revoke_token(created.id)
