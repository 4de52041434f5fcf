"""Our coordinator against answers that real systems gave."""
