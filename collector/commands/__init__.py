"""The commands of `collect`, one file each; `collector.cli` lists them."""
