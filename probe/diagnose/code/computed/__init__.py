"""What a program computes, and the mistakes that show in it."""
