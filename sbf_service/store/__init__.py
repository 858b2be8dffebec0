"""The database: what there is, who holds which number, and what each element must carry and was seen to carry.

``session.py`` says how a unit of work runs and in which order rows are locked; every other file is one subject.
"""
