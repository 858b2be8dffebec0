"""The database: clusters, claims, and the wanted and observed state of elements.

``session.py`` says how a unit of work runs and in which order rows are locked; every other file is one subject.
"""
