"""Icons of many designers, and their names."""
