"""Server-side assignors: plain functions from subscriptions and partitions to a target assignment."""
