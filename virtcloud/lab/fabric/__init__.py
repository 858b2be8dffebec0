"""The fabric: the processes that create a lab's nodes, cables and services from a plan.

The fabric runs on this machine's kernel or inside User-mode Linux. Imports are slow in User-mode Linux. The modules of
this package therefore import only each other and the standard library.
"""
