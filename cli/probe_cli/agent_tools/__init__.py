"""What `probe mcp` offers to agents: tools and resources, over the client and routes that commands use."""
