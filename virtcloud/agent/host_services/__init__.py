"""Services that a host offers to the guests of a cluster: DHCP and DNS by one dnsmasq per cluster, and metadata."""
