"""The command line: `jaxrl` and its subcommands."""
