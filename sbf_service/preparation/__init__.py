"""Preparation sheets: the configuration that administrators enter once on uplinks and on the backbone. Pure.

``platforms`` contains the texts of the sheets, in one module for each platform. A new platform needs a module, and an
entry of ``PLATFORMS`` in ``platforms/__init__.py``.
"""
