"""Faults of a run: values that say what goes wrong and when, and the nemesis that carries them out."""
