"""The trace of a run: its schema, its recorder, its digest."""
