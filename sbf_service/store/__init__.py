"""The database: clusters, claims, and the wanted and observed state of elements.

``unit_of_work.py`` describes how a unit of work runs and in which order it locks rows. Every other module is about one
subject.
"""
