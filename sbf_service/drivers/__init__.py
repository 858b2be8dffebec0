"""Drivers: the adapters between SBF and kinds of devices, behind the contract of ``contract.py`` (DESIGN.md §8).

``switch/`` and ``edge/`` have the drivers and the dialects of switches and provider edges, ``transport/`` the protocols
of their sessions. ``registry.py`` lists all platforms.
"""
