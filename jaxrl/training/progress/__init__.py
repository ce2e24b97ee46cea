"""Where a run stands: its totals and rows, throughput, schedule, and line in the terminal."""
