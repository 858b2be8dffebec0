"""A switch, an access link, and a host that can run containers, for the tests of the playbooks.

The kernel of the machine that runs the tests may lack 802.1Q. A host with an access link needs no 802.1Q, because the
frames on this link are untagged. The emulated switch has no cable, so guests reach only guests on the same host.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from support.emulators.switch_device import ENABLE_SECRET, PASSWORD
from support.installation.ansible_machines import ROOT, Site
from virtcloud.lab.lab_images import make_container_image

SWITCH_ADDRESS = "10.99.0.1"
"""The address of the emulated switch. In the network of the playbooks' machines, the machine that runs the tests has
this address.
"""
INTERFACE = "data0"
SETTINGS = """
[credentials.site-brno]
username = "admin"
password = {file = "/etc/virtcloud/site-brno.password"}
enable = {file = "/etc/virtcloud/site-brno.enable"}
"""
AGENT_SETTINGS = 'bridged_frames_filtered = "accept"\n'
# libvirt uses systemd-machined if D-Bus can start systemd-machined. On this host, systemd-machined must not run,
# because systemd-machined would not find the processes of a container.
PREPARE = f"""set -e
ip link add {INTERFACE} up type veth peer name wire0
ip link set wire0 up
for folder in $(awk '$3 == "cgroup" {{print $2}}' /proc/mounts); do mount -o remount,bind,rw $folder; done
[ -e /dev/fuse ] || mknod /dev/fuse c 10 229
rm /usr/share/dbus-1/system-services/org.freedesktop.machine1.service
systemctl stop systemd-machined
systemctl reload dbus"""
STATE = "/var/lib/virtcloud/agent"


@contextmanager
def running_switch(site: Site) -> Iterator[str]:
    """Run an emulated switch in the network of the machines. Yield the switch's address and port."""
    program = "support.programs.emulated_switch_program"
    command = ("nsenter", f"--net={site.namespace}", sys.executable, "-m", program, SWITCH_ADDRESS)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    with subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    ) as switch:
        assert switch.stdin
        assert switch.stdout
        yield switch.stdout.readline().strip()
        switch.stdin.close()  # ends the program


def write_secrets(site: Site) -> list[dict[str, str]]:
    secrets = {"site-brno.password": PASSWORD, "site-brno.enable": ENABLE_SECRET}
    for name, secret in secrets.items():
        (site.folder / name).write_text(f"{secret}\n")
    return [{"src": str(site.folder / name), "name": name} for name in secrets]


def prepare_host(site: Site, host: str) -> None:
    """Create the host's interface of the access link, and allow containers on the host, which is itself a container."""
    site.read(host, PREPARE)


@contextmanager
def agent_with_containers(site: Site, host: str) -> Iterator[None]:
    """Run the agent with its state in a tmpfs during the context.

    The roots of guests are overlays, and so is a machine's root file system. Linux refuses an overlay on an overlay.
    """
    site.read(
        host, f"systemctl stop virtcloud-agent && mount -t tmpfs agent {STATE} && systemctl start virtcloud-agent"
    )
    try:
        yield
    finally:
        site.read(host, f"systemctl stop virtcloud-agent && umount --lazy {STATE} && systemctl start virtcloud-agent")


def add_image(site: Site, machine: str, cli: str) -> None:
    """Add the image ``busybox`` to SBF, for all users. ``cli`` starts the command ``virtcloud`` on ``machine``."""
    make_container_image(site.folder)
    archive = site.folder / machine / "root/root/busybox.tar"
    rootfs = str(site.folder / "busybox/rootfs")
    subprocess.run(("/bin/tar", "-C", rootfs, "--owner=0", "--group=0", "-cf", str(archive), "."), check=True)  # noqa: S603 - our own
    site.read(machine, f"{cli} image add busybox /root/busybox.tar && {cli} image share busybox --everybody")
