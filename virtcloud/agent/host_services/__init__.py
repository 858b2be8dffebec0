"""Services that the host offers to the guests of a cluster: DHCP and DNS, by one dnsmasq for each cluster."""
