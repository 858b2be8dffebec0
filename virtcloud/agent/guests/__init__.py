"""The guests of a machine: libvirt domains, images, and guests' files."""
