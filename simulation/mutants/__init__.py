"""Known historic bugs that are put back one at a time from outside, to test that a judge catches each.

The product has no switch for them. A mutant replaces functions while it is applied, so renaming a function
breaks the mutant with an error.
"""
