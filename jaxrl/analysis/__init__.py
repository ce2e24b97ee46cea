"""Compare, plot and film finished runs and searches, on self-contained HTML pages."""
