"""Preparation sheets: the configuration that administrators enter once on uplinks and on the backbone. Pure.

``platforms`` contains the texts, in one module for each platform. A new platform needs one module and one line in
``platforms/__init__.py``.
"""
