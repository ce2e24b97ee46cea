"""The flags of commands: their data classes, how they are read, and how errors name them."""
