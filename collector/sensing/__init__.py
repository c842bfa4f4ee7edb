"""Power sensors: reading = response(sensor) · power(load) + noise, solved for whatever is unknown."""
