"""Single active consumers in a simulated cluster: nodes that come and go, clients, and who watches them."""
