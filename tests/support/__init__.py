"""What tests of several folders share: fakes, emulators, simulated machines, and real programs that tests start."""
