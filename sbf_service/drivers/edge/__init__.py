"""Drivers of provider edges, and the dialects of their platforms."""
