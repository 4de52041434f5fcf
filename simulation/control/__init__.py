"""Control over HTTP: everything that an embedded Kafka can do, for tests in any language."""
