"""Parts shared by all commands: exit status, output files."""
