"""Drivers of provider edges: command lines and Linux."""
