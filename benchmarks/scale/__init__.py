"""The cost of calls in installations of several sizes: a store that is filled directly, and counted operations.

``python -m benchmarks.scale`` fills a database for each size and measures each operation in this process.
"""
