"""Torque: the scripts that its MoMs and its qsub run, what writes them, and the old verbs of ``sbf``."""
