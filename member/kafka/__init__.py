"""KIP848Consumer: a member over aiokafka's client and fetcher, against real brokers."""
