"""The computer and the process: its cores, forks, its terminal, and what a report says of it."""
