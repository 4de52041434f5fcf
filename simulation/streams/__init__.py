"""Streams applications in virtual time: clients with threads, their failures, and their checks."""
