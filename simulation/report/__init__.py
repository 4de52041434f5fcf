"""The report: one HTML file with everything in it, readable where there is no network.

Values come in (`model`), a page comes out (`render`). The page of a single run needs no library; the page of
a campaign needs jinja2 and plotly, from the extra `fencepost[spark]`.
"""
