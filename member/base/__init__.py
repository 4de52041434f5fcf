"""Parts that every member has, whatever its protocol: positions, commits, leaves, errors, and the shell."""
