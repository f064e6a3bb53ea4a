"""The controller: members report to it, and it measures the network, runs the policy and swaps plans."""
