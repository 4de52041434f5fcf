"""Groups under faults in virtual time: world, scenarios, judges, trace, campaigns, command line."""
