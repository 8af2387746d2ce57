"""Import: torch's functional ATen graph into the graph IR, node by node."""
