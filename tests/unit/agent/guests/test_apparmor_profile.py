"""Tests of the AppArmor profile that libvirt's own program generates for a virtual machine of the agent.

The kernel on which the tests run may lack AppArmor, so no test loads the profile.
"""

import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.hosts.seed_documents import seeded_guest

from virtcloud.agent.guests.domain_xml import render_domain
from virtcloud.agent.guests.domains import DomainEnvironment
from virtcloud.agent.guests.images import QemuImage
from virtcloud.agent.guests.seed_images import SEED
from virtcloud.model.wanted import Segment

HELPER = Path("/usr/lib/libvirt/virt-aa-helper")
UUID = "4dea22b3-1d52-d8f3-2516-782e98ab3fa0"


def list_allowed_files(domain: str) -> dict[str, str]:
    xml = domain.replace("<memory", f"<uuid>{UUID}</uuid><memory", 1)
    argv = [str(HELPER), "--dryrun", "--create", "--uuid", f"libvirt-{UUID}"]
    done = subprocess.run(argv, input=xml, capture_output=True, text=True, check=True)  # noqa: S603 - no input
    rules = re.findall(r'^  (deny )?"(.*)" (\w+),$', done.stdout + done.stderr, re.MULTILINE)
    return {f"{denied}{path}": rights for denied, path, rights in rules if "libvirt" not in path}


@pytest.mark.skipif(not HELPER.exists(), reason="NOT TESTED: libvirt has no AppArmor driver here")
def test_apparmor_allows_a_machine_only_its_own_files(tmp_path: Path, make_segment: Callable[..., Segment]) -> None:
    image, disk, extra, seed = (tmp_path / name for name in ("image.raw", "disk.qcow2", "disk-scratch.raw", SEED))
    for path in (image, extra, seed):
        path.write_bytes(bytes(1 << 16))
    options = ("-q", "-f", "qcow2", "-F", "raw", "-b", str(image), str(disk))
    subprocess.run(["qemu-img", "create", *options], check=True)  # noqa: S603, S607 - no input
    guest = seeded_guest(disks=[{"name": "scratch", "size_mb": 16}])
    environment = DomainEnvironment("x86_64", tmp_path)
    machine = QemuImage(kind="qemu", disk=image, disk_format="raw")
    domain = render_domain(make_segment("4c1f", 100), guest, machine, "abc", environment)
    assert list_allowed_files(domain) == {
        str(disk): "rwk",
        str(image): "rk",
        f"deny {image}": "w",
        str(extra): "rwk",
        str(seed): "rk",
        f"deny {seed}": "w",
    }
    shared = render_domain(make_segment("4c1f", 100), guest, machine, "abc", replace(environment, shared=True))
    assert list_allowed_files(shared) == list_allowed_files(domain)
