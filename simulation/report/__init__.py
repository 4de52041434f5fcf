"""The report: one HTML file with everything in it, readable without a network.

`model` has the input values, and `render` makes the page. The page of a single run needs no library; the page
of a campaign needs jinja2 and plotly, from the extra `fencepost[spark]`.
"""
