"""Power sensors: reading = response(sensor) · power(load) + noise, solved for the unknown quantities."""
