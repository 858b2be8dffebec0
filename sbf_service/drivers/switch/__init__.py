"""Drivers of switches, and the dialects of their platforms."""
