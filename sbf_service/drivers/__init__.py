"""Drivers: what SBF needs of a device, and one small file for each kind of it (DESIGN.md §8).

A new platform with a command line is one file in ``dialects``, or a plug-in (``plugins.py``).
"""
