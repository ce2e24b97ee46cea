"""Files that runs leave: whole or absent, sealed, checked where they are read, without secrets."""
