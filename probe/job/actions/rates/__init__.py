"""Learning rates and the loss scale: showing, changing and holding them."""
