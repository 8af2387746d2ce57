"""The graph IR's words in Python: dtypes, sizes as text, values under construction, the op table."""
