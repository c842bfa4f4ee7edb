"""The kernel dataset: its columns, a durable writer and a reader."""
