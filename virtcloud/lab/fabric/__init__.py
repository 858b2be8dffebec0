"""The processes inside the lab's kernel: they create nodes, cables and services from a plan.

Only the standard library is imported here, because imports are slow inside User-mode Linux.
"""
