"""Pools, VLAN IDs, service IDs and ports: allocation, claims, quarantine and ownership."""
