"""What people meet: the command line, its tables and its page. Nothing below imports it."""
