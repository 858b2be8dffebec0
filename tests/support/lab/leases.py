"""Leases of guests in a lab: a script with which a guest gets its address by DHCP."""

from virtcloud.agent.host_services.dnsmasq_config import ADDRESS
from virtcloud.lab import Lab
from virtcloud.lab.demo.context import ENTER_CONTAINER
from virtcloud.lab.snapshot import read_guests
from virtcloud.model.views import ClusterView

ENTER = ENTER_CONTAINER.replace(" -n -m -u ", " -a ")
"""Enters all namespaces of a container, including the user namespace."""
GET_LEASE = f"""
ip -4 addr flush dev eth0
cat >/tmp/lease <<'END'
#!/bin/sh
[ "$1" = bound ] || exit 0
ip addr add $ip/$mask dev eth0
ip route add {ADDRESS} dev eth0
echo "$ip $hostname $domain $dns"
END
busybox chmod +x /tmp/lease
busybox udhcpc -i eth0 -n -q -t 20 -T 1 -s /tmp/lease
"""
"""Replaces a guest's IPv4 addresses by an address from DHCP, and prints the DHCP answer."""


def run_in_guest(lab: Lab, host: str, cluster: ClusterView, script: str) -> str:
    (domain,) = (name for name in read_guests(lab, host) if cluster.id in name)
    return lab.run(host, ("sh", "-c", ENTER, domain, "/bin/sh"), stdin=f"export PATH=/bin\n{script}\n").stdout
