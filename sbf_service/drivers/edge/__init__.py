"""Drivers of provider edges."""
