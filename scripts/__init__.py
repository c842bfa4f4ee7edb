"""Programs for a lent card: what `real_card.sh` runs."""
