"""The history of the tables; each step is one file in ``versions``."""
