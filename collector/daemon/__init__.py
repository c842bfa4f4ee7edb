"""The daemon: queued campaigns on several boards, side by side, through the command `collect` itself."""
