"""The version, apart so that the build can read it without importing torch."""

__version__ = "0.1.0"
