"""Knowledge of the network: estimates of links, round trips of paths, and the probes to send next."""
