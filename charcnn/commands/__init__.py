"""Commands: a module each, with `add_arguments(parser)` and `run(options) -> int`, which gives the exit status."""
