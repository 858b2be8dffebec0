"""Drivers of switches."""
