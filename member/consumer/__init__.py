"""The member's half of KIP-848 as a pure state machine: no clock, no randomness, no I/O, no tasks."""
