"""The drawings of the console: positions and colours of shapes, computed without I/O."""
