"""The fabric: the processes that create a lab's nodes, cables and services from a plan.

The fabric runs on this machine's kernel or inside User-mode Linux, where imports are slow. Therefore the modules of
this package import only each other and the standard library.
"""
