"""The protocol's vocabulary: what coordinators and members say to each other.

Values only. Nothing here reads a clock, draws a random number, or does I/O, and nothing here imports
another part of the project.
"""
