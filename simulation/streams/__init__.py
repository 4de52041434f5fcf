"""Streams applications in virtual time: clients with threads, their failures, and what must hold of them."""
