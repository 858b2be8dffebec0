"""The server hook and a real SBF. The SBF uses TLS, and its topology has one site, whose switch is unreachable."""

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.batch_fakes.server_hook import ServerHook
from support.migrated import create_sqlite
from support.programs.sbf_process import SbfProcess, find_address, run_sbf
from support.programs.tls import Authority
from virtcloud.client.sbf import SbfClient
from virtcloud.model.element_views import Pool
from virtcloud.model.topology import Topology
from virtcloud.model.views import ClusterView
from virtcloud.model.vlans import VlanSet

SWITCH = {"name": "brno-sw", "ports": ["p1", "p2"], "platform": "linux_bridge", "address": "127.0.0.1:1"}
TOPOLOGY = Topology.model_validate(
    {
        "name": "one",
        "sites": [
            {
                "name": "brno",
                "switches": [SWITCH],
                "hosts": [{"name": "n1", "ports": ["eth0"]}, {"name": "n2", "ports": ["eth0"]}],
            }
        ],
        "links": [{"a": "n1:eth0", "b": "brno-sw:p1"}, {"a": "n2:eth0", "b": "brno-sw:p2"}],
    }
)


@dataclass
class SingleSite:
    """A client of SBF with an operator's rights, and the server hook, which sends its requests to the same SBF."""

    operator: SbfClient
    hook: ServerHook

    def cluster(self, key: str) -> ClusterView:
        return self.operator.cluster(key)


@contextmanager
def run_single_site() -> Iterator[SingleSite]:
    with tempfile.TemporaryDirectory(prefix="sbf") as name:
        folder = Path(name)
        authority = Authority("authority")
        certificate, key = authority.sign(folder, "sbf")
        settings = {
            "database": f"sqlite:///{folder}/sbf.db",
            "listen": "127.0.0.1:0",
            "socket": f"{folder}/sbf.sock",
        }
        settings |= {"tls_certificate": str(certificate), "tls_key": str(key)}
        create_sqlite(settings["database"])
        config = folder / "sbf.toml"
        config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
        with (folder / "log").open("w") as log:
            process = SbfProcess("serve", "--config", str(config), stderr=log)
        try:
            until(lambda: find_address((folder / "log").read_text()))
            address = find_address((folder / "log").read_text())
            created = run_sbf("token", "create", "pbs", "--role", "scheduler", "--config", str(config))
            assert created.returncode == 0, created
            (folder / "token").write_text(created.stdout)
            hook_settings = {"token_file": f"{folder}/token", "ca_file": str(authority.write(folder))}
            with SbfClient(f"unix://{folder}/sbf.sock") as operator:
                operator.put_topology(TOPOLOGY)
                operator.put_pool("brno", Pool(vlans=VlanSet.parse("100-199")))
                yield SingleSite(operator, ServerHook(f"https://{address}", hook_settings, patient=True))
        finally:
            process.terminate()
            process.wait(60)


def until(reached: object) -> None:
    ends = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < ends
        time.sleep(0.02)
