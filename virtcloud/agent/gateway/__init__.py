"""Gateways: VPN and SSH access to networks, and routing between networks and the outside."""
