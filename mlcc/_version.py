"""The one place that states the version: Python, C++ and every cache key take it from here."""

__version__ = "0.1.0"
