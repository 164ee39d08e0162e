"""Every command of the README and the guides is run, and what it prints is what they say."""
