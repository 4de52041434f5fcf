"""Analyses of traces: tables over the rows of a trace, each declared with its columns and computed by Spark
SQL.

An analysis is a function from rows to a table. It needs nothing else, so it works on traces of any world.
"""
