"""What is made of single words: how texts are generated, and who chooses what reads them."""
