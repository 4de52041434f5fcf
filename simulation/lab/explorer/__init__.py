"""Walks every interleaving of a small world, made of the pure cores: no loop, no network, no chance."""
