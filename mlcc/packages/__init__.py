"""From a model to a file that runs without Python, and back into a process that has torch."""
