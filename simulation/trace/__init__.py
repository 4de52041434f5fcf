"""The trace of a run: its schema, its writer, its digest."""
