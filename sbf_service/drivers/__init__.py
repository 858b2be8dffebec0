"""Drivers: the adapters between SBF and kinds of devices, behind the contract of ``contract.py`` (DESIGN.md §8).

``switch/`` contains the drivers and dialects of switches, ``edge/`` those of provider edges, and ``transport/`` the
protocols of their sessions. ``registry.py`` lists all platforms.
"""
