"""What a worker and its parent agree on: the key by which a line on stderr is known for a message, and the phase of measuring."""

from typing import Final

MARK: Final = "wattprint"
"""Every message of a worker has this key; its value is the kind of the message: planned, progress or error."""
MEASURING: Final = "measuring"
"""The phase in which rows come (`collector.campaigns.running.Progress`)."""
