"""The simulated world: virtual time, seeded randomness, a network with faults, and observers."""
