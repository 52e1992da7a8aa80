"""The MCP tools and resources of `probe mcp`, built on the same client and routes as the commands."""
