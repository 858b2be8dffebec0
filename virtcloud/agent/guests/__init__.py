"""The guests of a host: libvirt domains, images, and guests' files."""
