"""Authentication: users, and the mechanisms by which clients prove their identity."""
