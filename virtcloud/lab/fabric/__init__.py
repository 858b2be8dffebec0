"""The processes inside the lab's kernel: they create nodes, cables and services from a plan.

These modules import only the standard library, because imports are slow inside User-mode Linux.
"""
