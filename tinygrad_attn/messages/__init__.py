"""What is said when a call is wrong."""
