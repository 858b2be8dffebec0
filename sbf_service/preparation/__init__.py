"""Preparation sheets: texts for administrators who configure uplinks and the backbone once. Pure.

The texts are data, in one module for each platform in ``platforms``. ``sheets.py`` selects the texts and inserts
values. A new platform needs one module and one line in ``platforms/__init__.py``.
"""
