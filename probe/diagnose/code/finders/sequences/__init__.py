"""What is computed of rows of words: places, generated words, preferences. Pure."""
