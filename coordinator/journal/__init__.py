"""The store of records, the only part of a coordinator that outlives it."""
