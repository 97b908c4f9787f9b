"""All blocks of an encoder in one kernel, for a few texts: thread blocks stay, and weights come to them in order."""
