"""Graphs of torch before import: ops taken apart, layers and views written so that the importer knows them."""
