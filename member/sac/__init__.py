"""A single active consumer of a stream: a pure machine, and `SingleActiveConsumer` over a transport."""
