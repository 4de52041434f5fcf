"""A member of a classic group (JoinGroup, SyncGroup), as a pure state machine."""
