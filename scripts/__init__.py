"""Programs for a borrowed card, run by `real_card.sh`."""
