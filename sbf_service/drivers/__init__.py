"""Drivers: the adapters between SBF and devices. ``contract.py`` defines the interface of a driver.

``switch/`` and ``edge/`` contain the drivers and dialects of switches and provider edges. ``transport/`` contains the
sessions with devices. ``registry.py`` lists all platforms.
"""
