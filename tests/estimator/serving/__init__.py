"""Values of a served answer with limits of an interval, `…_low` and `…_high`."""

MEASURES = ("ttft_s", "tpot_s", "slot_s", "tokens_per_s", "power_w", "energy_per_token_j")
