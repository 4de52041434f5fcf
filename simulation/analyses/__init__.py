"""What traces tell: tables over rows of the trace's schema, declared with their columns, made by Spark SQL.

An analysis is a function from rows to a table. It needs nothing else, so it works on traces of any world.
"""
