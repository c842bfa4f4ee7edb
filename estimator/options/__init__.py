"""What all commands share: exit status, files to write."""
