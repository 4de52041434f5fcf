"""Groups under faults in virtual time: world, scenarios, checkers, trace, campaigns, command line."""
