"""The user's own program in the simulated world: hosts, a network, a virtual clock, faults, judges."""
