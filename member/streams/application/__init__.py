"""The shell of a Streams client: worker tasks over members, a state directory, and background services."""
