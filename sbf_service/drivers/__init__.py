"""Drivers: the adapters between SBF and devices. ``contract.py`` defines the interface of a driver.

``switch/`` contains the drivers and dialects of switches. ``edge/`` contains the drivers and dialects of provider
edges. ``transport/`` contains the sessions with devices. ``registry.py`` lists all platforms.
"""
