"""Drivers: what SBF needs of a device, and one small file for each kind of it (DESIGN.md §8).

A new platform is one file and one entry in ``registry.py``.
"""
