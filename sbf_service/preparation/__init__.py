"""Preparation sheets: the configuration that administrators enter once on uplinks and on the backbone. Pure.

A new platform needs a module in ``platforms`` and an entry of ``PLATFORMS``.
"""
