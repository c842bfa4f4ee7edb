"""The measurement: devices, sensing, correction, campaigns and the dataset format."""
