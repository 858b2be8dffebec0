"""The fabric: the processes that create a lab's nodes, cables and services from a plan.

The fabric runs on this machine's kernel or inside User-mode Linux, where imports are slow. Therefore its modules import
only the standard library.
"""
