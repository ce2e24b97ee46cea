"""Files that runs leave: whole or absent, sealed, checked where they are read, without secrets."""

__all__ = ["changes", "intact", "json_values", "paths", "rows", "schema", "seal", "urls", "whole"]
