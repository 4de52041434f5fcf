"""Where records are kept: the one thing of a coordinator that outlives it."""
