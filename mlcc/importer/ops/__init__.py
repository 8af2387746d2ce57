"""How ops become nodes of the graph IR, a module for each family."""
