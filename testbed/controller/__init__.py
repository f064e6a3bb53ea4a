"""The service that members report to: it gathers telemetry, runs the policy and swaps plans."""
