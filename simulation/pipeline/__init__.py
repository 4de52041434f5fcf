"""The pipeline: campaigns fanned out by Spark, and analyses of traces in Spark SQL.

It reads only traces, by their schema (`fencepost.simulation.trace.schema`), and nothing else of a world. Its
modules need the extra `fencepost[spark]`; importing the package itself does not.
"""
