"""Starting the agent in a new process, and starting the server."""
