"""Known historic bugs, put back one at a time from outside: is each of them caught by a checker?

The product has no switch for them. A mutant replaces functions while it is applied, so a function that is
renamed breaks the mutant loudly.
"""
