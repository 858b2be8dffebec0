"""Hooks and scripts that run inside batch systems (OpenPBS, Torque), and their installers."""
