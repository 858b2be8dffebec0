"""Preparation sheets: the one-time configuration of uplinks and of the backbone, as text for administrators. Pure.

Texts are data, one file for each platform in ``platforms``; ``sheets.py`` selects the texts and fills them in. A new
platform is one file and one line in ``platforms/__init__.py``.
"""
