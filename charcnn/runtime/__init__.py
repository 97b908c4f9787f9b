"""What runs a level on GPUs: buffers and streams, workers, pipelines, monitors and timelines."""
