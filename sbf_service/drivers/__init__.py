"""Drivers: the adapters between SBF and devices. ``contract.py`` defines the interface of a driver.

``switch/`` and ``edge/`` contain drivers and dialects, ``transport/`` contains the sessions with devices, and
``registry.py`` lists all platforms.
"""
