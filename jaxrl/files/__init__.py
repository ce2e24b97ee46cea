"""Files that runs leave: sealed folders, JSON checked where it is read, URLs without secrets."""

__all__ = ["changes", "intact", "json_values", "paths", "rows", "schema", "seal", "urls"]
