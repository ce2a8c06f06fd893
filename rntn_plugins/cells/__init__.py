"""Recurrent cells, one file a family. ``rntn_plugins.registry`` knows them by name."""
