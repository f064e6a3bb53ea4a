"""What is known of the network: estimates, round trips, and what is to be probed."""
