"""Capture: from a call of the user to a graph, from later calls to what was compiled for it."""
