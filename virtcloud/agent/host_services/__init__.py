"""Services that a host offers to a cluster's guests: DHCP and DNS by dnsmasq, and metadata."""
