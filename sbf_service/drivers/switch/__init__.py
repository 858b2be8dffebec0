"""Drivers of switches: command lines, candidate configurations, Linux bridges and Open vSwitch."""
