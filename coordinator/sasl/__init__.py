"""Who may connect: users, and the mechanisms by which clients prove who they are."""
