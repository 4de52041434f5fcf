"""Single active consumers in a simulated cluster: nodes that fail and return, clients, and their judges."""
