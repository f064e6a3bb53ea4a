"""Re-planning: predict the rounds of candidate plans, judge the plans, and decide which one to follow."""
