"""Gateways: VPN and SSH access to networks, and the routing of packets between networks and the outside."""
