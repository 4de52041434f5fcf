"""Our coordinator against responses of real systems."""
