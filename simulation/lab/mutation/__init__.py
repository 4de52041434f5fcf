"""Automatic mutants: change the cores one place at a time, and see which changes the judges notice."""
