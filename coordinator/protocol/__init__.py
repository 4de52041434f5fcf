"""The protocol's vocabulary: the messages between coordinators and members.

Values only. Nothing here reads a clock, draws a random number, or does I/O, and nothing here imports another
part of the project.
"""
