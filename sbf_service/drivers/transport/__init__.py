"""Protocols that carry a session with a device: SSH, NETCONF, eAPI, and shells."""
