"""What has to be configured once, on the site's uplinks and in the backbone, as text for its administrators. Pure.

Texts are data, one small file per platform in ``platforms``; ``sheets.py`` chooses and fills them. A new platform is
one file and one line in ``platforms/__init__.py``.
"""
