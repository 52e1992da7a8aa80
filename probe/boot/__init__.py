"""How the agent gets into a process that starts, and how processes of ours are started."""
