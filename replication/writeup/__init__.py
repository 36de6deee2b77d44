"""README, DEVIATIONS, the paper and the report pages: whatever they say in numbers is read from results/."""
